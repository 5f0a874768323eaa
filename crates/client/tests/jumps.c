// Reads a file while a timer's handler leaves the reads in the middle, by siglongjmp(3): they go on as before.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static sigjmp_buf place;
static volatile int jumps;

static void on_alarm(int signal)
{
    (void)signal;
    jumps++;
    siglongjmp(place, 1);
}

int main(int count, char **words)
{
    static char buffer[65536];
    int file = count == 2 ? open(words[1], O_RDWR) : -1;
    if (file < 0)
        return 1;
    signal(SIGALRM, on_alarm);
    struct itimerval every = {{0, 500}, {0, 500}}, none = {{0, 0}, {0, 0}};
    if (!sigsetjmp(place, 1))
        setitimer(ITIMER_REAL, &every, NULL);
    while (jumps < 1000)
        if (pread(file, buffer, sizeof buffer, 0) != sizeof buffer)
            return 2;
    setitimer(ITIMER_REAL, &none, NULL);
    for (int round = 0; round < 1000; round++) {
        memset(buffer, 0, sizeof buffer);
        if (pread(file, buffer, sizeof buffer, 0) != sizeof buffer || buffer[0] != 'a' || buffer[65535] != 'a')
            return 3;
        if (pwrite(file, buffer, sizeof buffer, 0) != sizeof buffer)
            return 4;
    }
    puts("= done");
    return 0;
}

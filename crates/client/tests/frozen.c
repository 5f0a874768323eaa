// Writes to a file for long, while the clock that it asks stands still, as under libfaketime.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

// In the place of the C library's, for the libraries of this program too.
int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now->tv_sec = 1000000000;
    now->tv_nsec = 0;
    return 0;
}

int main(int count, char **words)
{
    int file = count == 2 ? open(words[1], O_RDWR) : -1;
    if (file < 0)
        return 1;
    for (int round = 0; round < 100; round++)
        if (pwrite(file, "b", 1, 0) != 1)
            return 2;
    puts("= begun");
    fflush(stdout);
    getchar();
    // Several ticks of the kernel's clock.
    poll(NULL, 0, 100);
    if (pwrite(file, "c", 1, 0) != 1)
        return 3;
    puts("= done");
    return 0;
}

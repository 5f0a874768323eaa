// A program that opens files, reads and writes them a few times, and ends in one of several ways.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static char buffer[16384];

static void on_alarm(int signal)
{
    (void)signal;
    kill(getpid(), SIGKILL);
}

int main(int count, char **words)
{
    char own[4096];
    if (count != 4)
        return 1;
    int number = atoi(words[3]), way = number % 4;
    snprintf(own, sizeof own, "%s.%d", words[2], number);
    int shared = open(words[1], O_RDWR), file = open(own, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (shared < 0 || file < 0)
        return 2;
    memset(buffer, 'a', sizeof buffer);
    if (write(file, buffer, sizeof buffer) != sizeof buffer)
        return 3;
    // Some are ended in the middle of a copy.
    if (way == 3) {
        struct itimerval soon = {{0, 0}, {0, 200 + number % 100 * 20}};
        signal(SIGALRM, on_alarm);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    for (int round = 0; round < 40 || way == 3; round++)
        if (pwrite(file, buffer, sizeof buffer, 0) != sizeof buffer || pread(shared, buffer, 4096, 0) != 4096 || pwrite(shared, buffer, 4096, 0) != 4096)
            return 4;
    if (buffer[0] != 'a' || buffer[4095] != 'a')
        return 5;
    if (way == 2)
        _exit(0);
    if (way == 1 && (close(file) || unlink(own)))
        return 6;
    return 0;
}

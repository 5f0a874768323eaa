// Threads end while they read and close a file: cancelled, cancelled asynchronously, or by a handler's pthread_exit(3). The file is mapped afterwards as before.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 100

static const char *path;
static volatile int has_begun;
static int cleanups;

static void on_signal(int signal)
{
    (void)signal;
    pthread_exit(NULL);
}

static void clean_up(void *nothing)
{
    (void)nothing;
    __atomic_fetch_add(&cleanups, 1, __ATOMIC_SEQ_CST);
}

static void *use(void *type)
{
    char byte;
    pthread_setcanceltype((int)(long)type, NULL);
    pthread_cleanup_push(clean_up, NULL);
    for (;; has_begun = 1) {
        int file = open(path, O_RDWR);
        for (int round = 0; round < 50; round++)
            if (pread(file, &byte, 1, round) == 1)
                pwrite(file, &byte, 1, round);
        close(file);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static int is_mapped(void)
{
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, path) != NULL;
    fclose(maps);
    return found;
}

int main(int count, char **words)
{
    if (count != 2)
        return 1;
    path = words[1];
    signal(SIGUSR1, on_signal);
    for (int number = 0; number < 3 * THREADS; number++) {
        pthread_t thread;
        int way = number % 3;
        has_begun = 0;
        long type = way == 1 ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
        if (pthread_create(&thread, NULL, use, (void *)type) != 0)
            return 2;
        while (!has_begun)
            usleep(100);
        usleep(rand() % 2000);
        if (way == 2)
            pthread_kill(thread, SIGUSR1);
        else
            pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    if (cleanups != 3 * THREADS)
        return 3;
    char byte;
    int file = open(path, O_RDWR);
    for (int round = 0; round < 100; round++)
        if (pread(file, &byte, 1, round) != 1 || byte != 'a')
            return 4;
    if (!is_mapped())
        return 5;
    puts("= done");
    return 0;
}

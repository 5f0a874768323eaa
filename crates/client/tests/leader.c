// Ends its first thread, and uses a file in another one often enough for it to be mapped.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_t first;

static void *use(void *file)
{
    char byte;
    pthread_join(first, NULL);
    for (int use = 0; use < 100; use++)
        if (pread(*(int *)file, &byte, 1, use) != 1 || byte != 'a')
            exit(1);
    puts("= done");
    exit(0);
}

int main(int count, char **words)
{
    static int file;
    pthread_t other;
    file = count == 2 ? open(words[1], O_RDWR) : -1;
    first = pthread_self();
    if (pthread_create(&other, NULL, use, &file))
        return 2;
    pthread_exit(NULL);
}

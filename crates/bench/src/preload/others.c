// Calls on a file of no pool. As a library (-DNEXT): what stands behind the library that is measured, and does nothing, so that no system call hides
// what that costs. As a program: prints the ns of a call.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifdef NEXT
ssize_t pread64(int file, void *to, size_t bytes, off_t at)
{
    return 0;
}
#else
static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(void)
{
    const long calls = 50000000;
    char byte;
    int file = open("/dev/null", O_RDWR);
    double start = now_ns();
    for (long call = 0; call < calls; call++)
        if (pread64(file, &byte, 1, call & 4095) != 0)
            return 1;
    printf("%f\n", (now_ns() - start) / calls);
    return 0;
}
#endif

/* Accesses whose homes are known, as the counter should see them: each node's in a marked interval of its own.
 *     touch KIND NODE...
 * KIND is load or store (8 MiB once, eight bytes at a time), again (64 KiB, over and over), turns (two lines that are 1 MiB
 * apart, in turns), or read (read() of an 8 MiB file in memory, into a buffer of 64 KiB where this program runs). The memory is bound to the node. Prints how long each
 * interval took, in microseconds. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../guest/mark.h"

enum { LARGE = 8 << 20, SMALL = 64 << 10, HUGE = 2 << 20, POLICY_BIND = 2 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static char *bound(int node, size_t bytes, int file)
{
    unsigned long mask = 1UL << node;
    char *memory = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    /* Large pages: then what is far apart here is as far apart in the node's memory. */
    if (file < 0) {
        memory += -(uintptr_t)memory % HUGE;
        if (madvise(memory, bytes, MADV_HUGEPAGE))
            fail("madvise");
    }
    if (syscall(SYS_mbind, memory, bytes, POLICY_BIND, &mask, 8 * sizeof mask, 0))
        fail("mbind");
    memset(memory, 1, bytes);
    return memory;
}

static void load(const char *memory, size_t bytes, int times)
{
    for (int i = 0; i < times; i++)
        for (size_t at = 0; at < bytes; at += 8)
            (void)*(const volatile uint64_t *)(memory + at);
}

static void take_turns(const char *memory)
{
    for (int i = 0; i < LARGE / SMALL; i++)
        for (int far = 0; far < 2; far++)
            (void)*(const volatile uint64_t *)(memory + far * (1 << 20));
}

static void store(char *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8)
        *(volatile uint64_t *)(memory + at) = at;
}

static void read_file(int file, char *buffer)
{
    for (size_t at = 0; at < LARGE; at += SMALL)
        if (pread(file, buffer, SMALL, at) != SMALL)
            fail("pread");
}

static void touch(const char *kind, int node)
{
    static char buffer[SMALL];
    int is_file = !strcmp(kind, "read"), is_small = !strcmp(kind, "again");
    size_t bytes = is_small ? SMALL : LARGE;
    int file = is_file ? memfd_create("touched", 0) : -1;
    if (is_file && (file < 0 || ftruncate(file, bytes)))
        fail("memfd");
    char *memory = bound(node, bytes, file);
    memset(buffer, 1, sizeof buffer);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    MARK(MARK_BEGIN);
    if (is_file)
        read_file(file, buffer);
    else if (!strcmp(kind, "store"))
        store(memory, bytes);
    else if (!strcmp(kind, "turns"))
        take_turns(memory);
    else
        load(memory, bytes, is_small ? LARGE / SMALL : 1);
    MARK(MARK_END);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%" PRId64 "\n", (int64_t)(end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000);
    munmap(memory, bytes);
    if (is_file)
        close(file);
}

int main(int count, char **words)
{
    for (int i = 2; i < count; i++)
        touch(words[1], atoi(words[i]));
    return count < 3;
}

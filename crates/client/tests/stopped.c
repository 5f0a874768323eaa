// Makes one call on each of many files, and stops itself before and after it: a test traces it, and lets it go on. What to do is on a board that both have mapped.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 4096
#define ROOM (96 << 10)
#define READS 4
#define STOP() __asm__ volatile("int3" ::: "memory")

struct call {
    uint64_t at, bytes;
    int64_t result;
};

static struct board {
    uint64_t file, is_write, uses, rounds;
    struct call call, early, reads[READS], last;
} *board;

// A tick of the clock for each file: where the program is stopped, many may pass.
static struct timespec now = {1000000000, 0};

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, time);
    *time = now;
    return 0;
}

static char *buffer(int number)
{
    return (char *)board + BUFFER + number * (size_t)ROOM;
}

static void carry_out(int file, int is_write, struct call *call, char *at)
{
    call->result = is_write ? pwrite(file, at, call->bytes, call->at) : pread(file, at, call->bytes, call->at);
}

int main(int count, char **words)
{
    char path[4096], byte;
    int shared = count == 3 ? open(words[1], O_RDWR) : -1;
    size_t bytes = BUFFER + (READS + 3) * (size_t)ROOM;
    if (shared < 0 || (board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0)) == MAP_FAILED)
        return 1;
    close(shared);
    // As long as it is in use the words of the mount stay mapped: looking for them takes thousands of instructions.
    snprintf(path, sizeof path, "%s.kept", words[2]);
    int kept = open(path, O_RDWR);
    for (int use = 0; use < 33; use++)
        if (pread(kept, &byte, 1, 0) != 1)
            return 2;
    puts("= up");
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        return 3;
    for (;;) {
        STOP();
        now.tv_sec++;
        snprintf(path, sizeof path, "%s.%lu", words[2], (unsigned long)board->file);
        int file = open(path, O_RDWR);
        if (file < 0)
            return 4;
        for (uint64_t use = 0; use < board->uses; use++)
            if (pread(file, &byte, 1, 0) != 1)
                return 5;
        // The first write of a tick. Those who do not know the file yet do not learn it by that.
        if (board->uses > 31 && pwrite(file, &byte, 1, 0) != 1)
            return 6;
        // Others cut the file in between.
        for (uint64_t round = 0; round < board->rounds; round++) {
            STOP();
            if (pwrite(file, &byte, 1, 0) != 1)
                return 7;
        }
        STOP();
        carry_out(file, board->is_write, &board->call, buffer(0));
        STOP();
        carry_out(file, 1, &board->early, buffer(1));
        for (int number = 0; number < READS; number++)
            carry_out(file, 0, &board->reads[number], buffer(2 + number));
        carry_out(file, 1, &board->last, buffer(2 + READS));
        close(file);
    }
}

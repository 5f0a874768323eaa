/* Memory whose node and contents are known, and a program that is to tell of it.
 *     held PROGRAM PREFIX:NODE:PAGES...
 * Maps a file in memory with a page of each kind in turn, bound to its node and beginning with its prefix, and one that stays
 * absent; and private memory that begins as the first kind. Then runs PROGRAM with its own process number and the prefixes,
 * but those that begin with "?", and each once: kinds of one prefix follow each other. Fails when PROGRAM does, or when
 * afterwards another number of the file's pages is present than were written. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, KINDS = 16, PRIVATE = 64, POLICY_BIND = 2 };

struct kind {
    char prefix[32];
    int node, pages;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void write_page(char *page, const struct kind *kind)
{
    unsigned long mask = 1UL << kind->node;
    if (syscall(SYS_mbind, page, PAGE, POLICY_BIND, &mask, 8 * sizeof mask, 0))
        fail("mbind");
    memcpy(page, kind->prefix, strlen(kind->prefix));
}

static int run(char *program, struct kind *kinds, int count)
{
    char number[16];
    char *words[KINDS + 3] = {program, number};
    snprintf(number, sizeof number, "%d", getpid());
    for (int i = 0, next = 2; i < count; i++)
        if (kinds[i].prefix[0] != '?' && (i == 0 || strcmp(kinds[i].prefix, kinds[i - 1].prefix)))
            words[next++] = kinds[i].prefix;
    pid_t child = fork();
    if (child == 0) {
        execv(program, words);
        perror(program);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail("the program");
    return status;
}

int main(int count, char **words)
{
    struct kind kinds[KINDS];
    int most = 0, all = 0;
    count -= 2;
    if (count < 1 || count > KINDS)
        return 2;
    for (int i = 0; i < count; i++) {
        if (sscanf(words[2 + i], "%31[^:]:%d:%d", kinds[i].prefix, &kinds[i].node, &kinds[i].pages) != 3)
            return 2;
        all += kinds[i].pages;
        most = kinds[i].pages > most ? kinds[i].pages : most;
    }
    size_t bytes = (size_t)most * (count + 1) * PAGE;
    int file = memfd_create("held", 0);
    if (file < 0 || ftruncate(file, bytes))
        fail("memfd");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *private = mmap(NULL, PRIVATE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || private == MAP_FAILED)
        fail("mmap");
    for (int turn = 0; turn < most; turn++)
        for (int i = 0; i < count; i++)
            if (turn < kinds[i].pages)
                write_page(memory + ((size_t)turn * (count + 1) + i) * PAGE, &kinds[i]);
    for (int i = 0; i < PRIVATE; i++)
        memcpy(private + i * PAGE, kinds[0].prefix, strlen(kinds[0].prefix));
    int status = run(words[1], kinds, count);
    struct stat after;
    if (fstat(file, &after))
        fail("fstat");
    if (after.st_blocks * 512 != (off_t)all * PAGE) {
        fprintf(stderr, "held: %lld bytes are present, and %lld were written\n", (long long)after.st_blocks * 512, (long long)all * PAGE);
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* The kernel's books about where the bytes of files lie in the memory of a process that serves them.
 *     witness PID PREFIX...
 * Looks at every page that is present in the process's shared mappings of files in memory (a tmpfs, a memfd), and at nothing
 * else: buffers through which bytes pass are private mappings, and rings belong to the kernel, so neither is looked at.
 * Which file a page is of tell its first bytes; on which node it lies tells move_pages. A page that is not present is not
 * touched, as that would bring it; one that is mapped twice counts twice. Prints lines of a prefix, a node and a count of
 * pages, "-" for pages that begin with none of the prefixes. Needs root's rights over the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* A batch is what one call of process_vm_readv takes. */
enum { PAGE = 4096, BATCH = 1024, HEAD = 32, NODES = 64, PREFIXES = 64 };

static int pid;
static int prefixes_count;
static char **prefixes;
/* Behind the prefixes one row for what begins with none of them. */
static unsigned long pages_found[PREFIXES + 1][NODES];

static void fail(const char *what)
{
    fprintf(stderr, "witness: process %d: %s: %s\n", pid, what, strerror(errno));
    exit(1);
}

static FILE *opened(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail(path);
    return file;
}

static int row_of(const char *head)
{
    for (int i = 0; i < prefixes_count; i++)
        if (!memcmp(head, prefixes[i], strlen(prefixes[i])))
            return i;
    return prefixes_count;
}

static void check_prefixes(void)
{
    for (int i = 0; i < prefixes_count; i++)
        for (int other = 0; other < prefixes_count; other++) {
            size_t length = strlen(prefixes[i]);
            if (!length || length > HEAD || (other != i && !strncmp(prefixes[other], prefixes[i], length))) {
                fprintf(stderr, "witness: '%s': a prefix has 1 to %d bytes, and no other begins with it\n", prefixes[i], HEAD);
                exit(2);
            }
        }
}

/* Counts pages, all of them present a moment ago. */
static void count_pages(void **pages, size_t count)
{
    static char heads[BATCH][HEAD];
    static struct iovec from[BATCH];
    static int nodes[BATCH];
    struct iovec to = {heads, count * HEAD};
    for (size_t i = 0; i < count; i++)
        from[i] = (struct iovec){pages[i], HEAD};
    if (process_vm_readv(pid, &to, 1, from, count, 0) != (ssize_t)(count * HEAD))
        fail("process_vm_readv");
    if (syscall(SYS_move_pages, pid, count, pages, NULL, nodes, 0))
        fail("move_pages");
    for (size_t i = 0; i < count; i++) {
        if (nodes[i] < 0 || nodes[i] >= NODES) {
            errno = nodes[i] < 0 ? -nodes[i] : ERANGE;
            fail("the node of a page that is present");
        }
        pages_found[row_of(heads[i])][nodes[i]]++;
    }
}

static void count_mapping(int pagemap, uint64_t begin, uint64_t end)
{
    static uint64_t entries[BATCH];
    static void *present[BATCH];
    while (begin < end) {
        size_t pages = (end - begin) / PAGE < BATCH ? (end - begin) / PAGE : BATCH, found = 0;
        ssize_t bytes = pages * sizeof *entries;
        if (pread(pagemap, entries, bytes, begin / PAGE * sizeof *entries) != bytes)
            fail("pagemap");
        for (size_t i = 0; i < pages; i++)
            if (entries[i] >> 63)
                present[found++] = (void *)(uintptr_t)(begin + i * PAGE);
        if (found)
            count_pages(present, found);
        begin += pages * PAGE;
    }
}

int main(int count, char **words)
{
    prefixes_count = count - 2;
    prefixes = words + 2;
    if (prefixes_count < 1 || prefixes_count > PREFIXES || (pid = atoi(words[1])) <= 0) {
        fprintf(stderr, "witness: PID PREFIX...\n");
        return 2;
    }
    check_prefixes();
    FILE *maps = opened("maps");
    int pagemap = fileno(opened("pagemap"));
    char line[8192];
    while (fgets(line, sizeof line, maps)) {
        uint64_t begin, end;
        unsigned major;
        char rights[5];
        int name = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%*x %*u %n", &begin, &end, rights, &major, &name) != 4)
            fail("maps");
        /* Files in memory have no device; neither has what the kernel maps by itself, but that has a name of its own. */
        if (rights[3] == 's' && major == 0 && strncmp(line + name, "anon_inode:", 11))
            count_mapping(pagemap, begin, end);
    }
    for (int row = 0; row <= prefixes_count; row++)
        for (int node = 0; node < NODES; node++)
            if (pages_found[row][node])
                printf("%s %d %lu\n", row < prefixes_count ? prefixes[row] : "-", node, pages_found[row][node]);
    return 0;
}

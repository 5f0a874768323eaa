/* Writes to a file of a pool, and calls in between that concern other descriptors or the process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <homenode.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 4096, WRITES = 1000 };

static int file;

static int write_some(void) {
    static char block[BYTES];
    for (int number = 0; number < WRITES; number++)
        if (homenode_pwrite(file, block, sizeof block, 0) != sizeof block)
            return 0;
    return 1;
}

int main(int count, char **arguments) {
    struct rlimit core;
    if (count != 2)
        return 2;
    file = homenode_open(arguments[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || homenode_allocate(file, 0, 0, BYTES) < 0 || !write_some())
        return 3;
    if (getrlimit(RLIMIT_CORE, &core) < 0 || setrlimit(RLIMIT_CORE, &core) < 0 || !write_some())
        return 4;
    if (fcntl(2, F_SETFL, fcntl(2, F_GETFL) | O_APPEND) < 0 || !write_some())
        return 5;
    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0 || !write_some())
        return 6;
    return homenode_close(file) < 0;
}

/* Writes records to a file on a mounted pool and reads them back, each by a copy:
 *     cc records.c $(pkg-config --cflags --libs homenode) -o records && ./records /mnt/pool/file
 */
#include <errno.h>
#include <fcntl.h>
#include <homenode.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_BYTES = 4096, RECORDS = 1000, NODES_MAX = 64 };

static void fail(const char *what, const char *path) {
    fprintf(stderr, "records: cannot %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: records FILE\n");
        return 2;
    }
    const char *path = arguments[1];
    int file = homenode_open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0)
        fail("open", path);
    /* Writes to what has room are copies. */
    if (homenode_allocate(file, 0, 0, (int64_t)RECORD_BYTES * RECORDS) < 0)
        fail("take room for", path);
    static char record[RECORD_BYTES], head[8], rest[RECORD_BYTES - 8];
    for (int number = 0; number < RECORDS; number++) {
        memset(record, number % 251, sizeof record);
        if (homenode_pwrite(file, record, sizeof record, (int64_t)number * RECORD_BYTES) != sizeof record)
            fail("write", path);
    }
    for (int number = 0; number < RECORDS; number++) {
        struct iovec parts[] = {{head, sizeof head}, {rest, sizeof rest}};
        if (homenode_readv(file, parts, 2, (int64_t)number * RECORD_BYTES) != RECORD_BYTES)
            fail("read", path);
        if (head[0] != (char)(number % 251) || rest[sizeof rest - 1] != (char)(number % 251)) {
            fprintf(stderr, "records: record %d of %s is not what was written\n", number, path);
            return 1;
        }
    }
    if (homenode_sync(file) < 0)
        fail("sync", path);
    printf("%lld bytes\n", (long long)homenode_size(file));
    uint64_t on[NODES_MAX];
    ssize_t nodes = homenode_map(file, on, NODES_MAX);
    for (ssize_t node = 0; node < nodes && node < NODES_MAX; node++)
        printf("node %zd: %llu bytes\n", node, (unsigned long long)on[node]);
    if (nodes < 0)
        printf("%s is on no pool: all of it were system calls\n", path);
    return homenode_close(file) < 0;
}

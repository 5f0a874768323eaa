/* Files of mounted pools, read and written by copies. Link with `pkg-config --cflags --libs homenode`.
 * Each function fails as the system call that it names: -1, and errno. */

#ifndef HOMENODE_H
#define HOMENODE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file, as open(2) with O_CLOEXEC; `mode` counts where it is made. Returns its descriptor.
//
// Reads and writes at an offset are copies by the calling thread on a mounted pool whose files are the kernel's, if the
// file is opened with O_RDONLY or O_RDWR and without O_APPEND, O_DIRECT and O_SYNC; on any other file they are system calls.
// The first call sets an action for SIGBUS, which calls the one that was there before. A program that has loaded this
// library by dlopen(3) has to keep that action, to let SIGBUS through in threads that read and write so, and to close
// the file by homenode_close(). The library stays after dlclose(3).
//
// # Safety
// `path` is a string that ends in NUL.
int homenode_open(const char *path,
                  int flags,
                  mode_t mode);

// Reads at an offset, as pread(2): the number of bytes, 0 at the file's end.
//
// # Safety
// `to` has room for `bytes` bytes.
ssize_t homenode_pread(int fd, void *to, size_t bytes, int64_t offset);

// Writes at an offset, as pwrite(2): the number of bytes.
//
// # Safety
// `from` has `bytes` bytes.
ssize_t homenode_pwrite(int fd, const void *from, size_t bytes, int64_t offset);

// Reads at an offset into several buffers, as preadv(2).
//
// # Safety
// `vector` has `count` buffers, with room for their bytes.
ssize_t homenode_readv(int fd, const struct iovec *vector, int count, int64_t offset);

// Writes at an offset from several buffers, as pwritev(2).
//
// # Safety
// `vector` has `count` buffers of their bytes.
ssize_t homenode_writev(int fd, const struct iovec *vector, int count, int64_t offset);

// The file's size in bytes.
int64_t homenode_size(int fd);

// Makes what was written durable where the file can be, as fsync(2).
int homenode_sync(int fd);

// Takes room for a range of the file, or gives it back, as fallocate(2) with that `mode`. Writes to what has room are
// copies.
int homenode_allocate(int fd, int mode, int64_t offset, int64_t bytes);

// Tells where the file's bytes lie: those on node N in `bytes[N]`, for the first `count` nodes. Returns 1 more than the
// number of the last node that has some. ENODATA or EOPNOTSUPP if the file is on no pool.
//
// # Safety
// `bytes` has room for `count` numbers.
ssize_t homenode_map(int fd, uint64_t *bytes, size_t count);

// Closes the file, as close(2). Threads that copy meanwhile go on to their copies' end. One whose copy cannot end, as the file is being cut, makes a
// system call, on the file that has the number then.
int homenode_close(int fd);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOMENODE_H */

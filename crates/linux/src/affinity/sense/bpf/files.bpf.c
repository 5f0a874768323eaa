// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Which threads read and write which files of one filesystem, from which node's CPUs: a tmpfs, or a FUSE mount whose files are passed
 * through to one. Bytes that mappings and splice(2) move are not seen.
 */
#include "counting.h"

#define BPF_F_NO_PREALLOC 1
#define FILES_TIMES_THREADS_MAX 32768

/* The filesystem, 12 bits major, 20 bits minor; set by the loader. */
const volatile __u32 device = 0;

struct key {
	__u64 file;
	__u32 thread;
	__u32 node;
};

struct count {
	__u64 read;
	__u64 written;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FILES_TIMES_THREADS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct key);
	__type(value, struct count);
} counts SEC(".maps");

static __always_inline int add(struct kiocb *iocb, long bytes, bool is_write)
{
	struct inode *inode = iocb->ki_filp->f_inode;
	struct count first = {};
	struct count *count;
	struct key key;

	if (bytes <= 0 || inode->i_sb->s_dev != device)
		return 0;
	key.file = inode->i_ino;
	key.thread = this_thread();
	key.node = bpf_get_numa_node_id();
	count = bpf_map_lookup_elem(&counts, &key);
	if (!count) {
		bpf_map_update_elem(&counts, &key, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&counts, &key);
	}
	if (!count)
		miss(bytes);
	else if (is_write)
		__sync_fetch_and_add(&count->written, bytes);
	else
		__sync_fetch_and_add(&count->read, bytes);
	return 0;
}

SEC("fexit/fuse_passthrough_read_iter")
int BPF_PROG(after_mount_read, struct kiocb *iocb, struct iov_iter *iter, long bytes)
{
	return add(iocb, bytes, 0);
}

SEC("fexit/fuse_passthrough_write_iter")
int BPF_PROG(after_mount_write, struct kiocb *iocb, struct iov_iter *iter, long bytes)
{
	return add(iocb, bytes, 1);
}

SEC("fexit/shmem_file_read_iter")
int BPF_PROG(after_tmpfs_read, struct kiocb *iocb, struct iov_iter *iter, long bytes)
{
	return add(iocb, bytes, 0);
}

/* Writes of several filesystems, of which tmpfs is one up to Linux 6.5. */
SEC("fexit/generic_file_write_iter")
int BPF_PROG(after_generic_write, struct kiocb *iocb, struct iov_iter *iter, long bytes)
{
	return add(iocb, bytes, 1);
}

SEC("fexit/shmem_file_write_iter")
int BPF_PROG(after_tmpfs_write, struct kiocb *iocb, struct iov_iter *iter, long bytes)
{
	return add(iocb, bytes, 1);
}

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Which disks threads read from and write to. How many bytes a thread moved the kernel counts itself; this tells of what.
 *
 * Requests are counted for the thread that submits them: its own reads and direct writes. What it writes to the page cache
 * is submitted by others later, or by itself to make it durable, so the pages that it makes dirty are counted instead, where
 * the kernel counts them for the thread. Threads of io_uring's own count for themselves, and nobody asks for them.
 */
#include "counting.h"

#define OPERATION_MASK 0xff
#define READ 0
#define WRITE 1
#define S_IFMT 0170000
#define S_IFBLK 0060000
#define THREADS_TIMES_DISKS_MAX 32768

/* Set by the loader. */
const volatile __u32 page_bytes = 4096;

struct key {
	__u32 thread;
	/* A disk, or for dirty pages perhaps a part of one, as the kernel numbers them: 12 bits major, 20 bits minor. */
	__u32 device;
};

struct count {
	__u64 read;
	__u64 written;
	__u64 dirtied;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_TIMES_DISKS_MAX);
	__type(key, struct key);
	__type(value, struct count);
} counts SEC(".maps");

static __always_inline struct count *count_of(__u32 device)
{
	struct key key = { .thread = this_thread(), .device = device };
	struct count first = {};
	struct count *known = bpf_map_lookup_elem(&counts, &key);

	if (known)
		return known;
	bpf_map_update_elem(&counts, &key, &first, BPF_NOEXIST);
	return bpf_map_lookup_elem(&counts, &key);
}

/* Direct writes hint that more will follow; what writes pages of the cache back does not. Journals do both. */
static __always_inline bool is_direct(__u32 flags)
{
	__u32 idle = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_IDLE);
	__u32 meta = 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_META);

	return (flags & (idle | meta)) == idle;
}

static __always_inline __u64 bytes_of(struct folio *folio)
{
	unsigned long flags = 0;

	/* Its flags are its first word in every version, of one type or another. */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return page_bytes;
	/* Renamed in 6.15. */
	if (bpf_core_field_exists(folio->_nr_pages))
		return (__u64)BPF_CORE_READ(folio, _nr_pages) * page_bytes;
	if (bpf_core_field_exists(folio->_folio_nr_pages))
		return (__u64)BPF_CORE_READ(folio, _folio_nr_pages) * page_bytes;
	return page_bytes;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(at_request, struct bio *bio)
{
	__u32 flags = bio->bi_opf;
	__u32 operation = flags & OPERATION_MASK;
	__u32 bytes = bio->bi_iter.bi_size;
	struct count *count;

	if (operation > WRITE || !bytes)
		return 0;
	if (operation == WRITE && !is_direct(flags))
		return 0;
	count = count_of(bio->bi_bdev->bd_disk->part0->bd_dev);
	if (!count)
		miss(bytes);
	else if (operation == READ)
		__sync_fetch_and_add(&count->read, bytes);
	else
		__sync_fetch_and_add(&count->written, bytes);
	return 0;
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(at_dirty, struct folio *folio, struct address_space *mapping)
{
	struct block_device *device;
	struct inode *inode;
	struct count *count;

	if (!mapping)
		return 0;
	inode = mapping->host;
	device = inode->i_sb->s_bdev;
	if ((inode->i_mode & S_IFMT) == S_IFBLK)
		count = count_of(inode->i_rdev);
	else
		count = count_of(device ? device->bd_dev : 0);
	if (count)
		__sync_fetch_and_add(&count->dirtied, bytes_of(folio));
	else
		miss(bytes_of(folio));
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What programs that count for threads have in common. */
#ifndef HOMENODE_COUNTING_H
#define HOMENODE_COUNTING_H

#include "kernel.h"

/* The thread that runs, by its number. */
static __always_inline __u32 this_thread(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

/* Bytes that found no room in a map of counts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} missed SEC(".maps");

static __always_inline void miss(__u64 count)
{
	__u32 first = 0;
	__u64 *sum = bpf_map_lookup_elem(&missed, &first);

	if (sum)
		__sync_fetch_and_add(sum, count);
}

#endif

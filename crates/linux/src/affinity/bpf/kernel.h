/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Those parts of the kernel's structures that the programs beside this file read, for Linux 6.1 and newer. Offsets are of
 * no meaning here: the loader replaces them by those of the running kernel, which it knows from its BTF. Where kernels
 * differ in what a field is called, a structure has a second form, whose name ends in `___` and a word.
 */
#ifndef HOMENODE_KERNEL_H
#define HOMENODE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

/* uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_NOEXIST = 1,
};

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info {
	__u32 cpu;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_io_accounting {
	__u64 read_bytes;
	__u64 write_bytes;
};

struct cpumask {
	unsigned long bits[1];
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	struct sched_entity se;
	struct cpumask cpus_mask;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	__u64 start_boottime;
	char comm[16];
	struct task_io_accounting ioac;
	struct css_set *cgroups;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct net_device {
	unsigned int flags;
};

struct dst_entry {
	struct net_device *dev;
};

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	int skc_incoming_cpu;
};

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
};

struct socket {
	struct sock *sk;
};

struct gendisk {
	struct block_device *part0;
};

struct block_device {
	struct gendisk *bd_disk;
	__u32 bd_dev;
};

struct bvec_iter {
	unsigned int bi_size;
};

struct bio {
	struct block_device *bi_bdev;
	__u32 bi_opf;
	struct bvec_iter bi_iter;
};

struct super_block {
	struct block_device *s_bdev;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct address_space {
	struct inode *host;
};

#pragma clang attribute pop

enum cgroup_subsys_id {
	cpuset_cgrp_id = 0,
};

/* The thread that runs, by its number. */
static __always_inline __u32 this_thread(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

/* Bytes or events that found no room in a map of counts. */
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

/* Some of the helpers are for programs under this licence only. */
char LICENSE[] SEC("license") = "GPL";

#endif

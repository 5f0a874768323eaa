/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Those parts of the kernel's structures that the programs beside this file read, for Linux 6.1 and newer. Offsets are of
 * no meaning here: the loader replaces them by those of the running kernel, which it knows from its BTF.
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

struct device {
	struct device *parent;
};

struct net_device {
	unsigned int flags;
	int ifindex;
	struct device dev;
};

struct dst_entry {
	struct net_device *dev;
};

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	int skc_incoming_cpu;
	__u16 skc_rx_queue_mapping;
};

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	int sk_rx_dst_ifindex;
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
	__u32 s_dev;
	struct block_device *s_bdev;
};

struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct file {
	struct inode *f_inode;
};

struct kiocb {
	struct file *ki_filp;
};

struct iov_iter;

struct address_space {
	struct inode *host;
};

struct folio {
	unsigned int _nr_pages;
	unsigned int _folio_nr_pages;
};

#pragma clang attribute pop

enum req_flag_bits {
	__REQ_META = 12,
	__REQ_IDLE = 15,
};

enum pageflags {
	PG_head = 6,
};

enum cgroup_subsys_id {
	cpuset_cgrp_id = 0,
};

/* Some of the helpers are for programs under this licence only. */
char LICENSE[] SEC("license") = "GPL";

#endif

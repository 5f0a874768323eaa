// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Every thread of user space with what /proc tells of it in five files, as one record: a `struct record`, followed by as
 * many words of its mask as it says. All of it is little-endian, without padding, and `decode.rs` reads it.
 */
#include "kernel.h"

/* linux/sched.h: threads of the kernel, and those whose mask the kernel lets nobody set. */
#define PF_KTHREAD 0x00200000
#define PF_NO_SETAFFINITY 0x04000000
#define MASK_WORDS_MAX 128

/* How many words a mask has for the CPUs that there may ever be; set by the loader. */
const volatile __u32 mask_words = 1;

struct record {
	__u32 process;
	__u32 thread;
	__u64 started_ns;
	__u64 run_ns;
	__u64 read_bytes;
	__u64 written_bytes;
	/* Names the cpuset: the same for all threads in it. */
	__u64 cpuset;
	__u32 cpu;
	__u16 has_bytes;
	__u16 mask_words;
	char name[16];
	char process_name[16];
};

static __always_inline __u64 cpuset_of(struct task_struct *task)
{
	__u32 index;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpuset_cgrp_id))
		return 0;
	index = bpf_core_enum_value(enum cgroup_subsys_id, cpuset_cgrp_id);
	if (index > 15)
		return 0;
	return task->cgroups->subsys[index]->cgroup->kn->id;
}

SEC("iter/task")
int each_thread(struct bpf_iter__task *context)
{
	struct seq_file *seq = context->meta->seq;
	struct task_struct *task = context->task;
	struct record record = {};

	if (!task || task->flags & (PF_KTHREAD | PF_NO_SETAFFINITY))
		return 0;
	record.process = task->tgid;
	record.thread = task->pid;
	record.started_ns = task->start_boottime;
	record.run_ns = task->se.sum_exec_runtime;
	if (bpf_core_field_exists(task->ioac.read_bytes)) {
		record.read_bytes = task->ioac.read_bytes;
		record.written_bytes = task->ioac.write_bytes;
		record.has_bytes = 1;
	}
	record.cpuset = cpuset_of(task);
	record.cpu = task->thread_info.cpu;
	record.mask_words = mask_words;
	bpf_probe_read_kernel_str(record.name, sizeof(record.name), task->comm);
	bpf_probe_read_kernel_str(record.process_name, sizeof(record.process_name), task->group_leader->comm);
	/* A record that finds no room is withdrawn and shown again by the next read. */
	if (bpf_seq_write(seq, &record, sizeof(record)))
		return 0;
	for (__u32 i = 0; i < mask_words && i < MASK_WORDS_MAX; i++) {
		unsigned long word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)&task->cpus_mask + i * sizeof(word));
		if (bpf_seq_write(seq, &word, sizeof(word)))
			return 0;
	}
	return 0;
}

/* The access counter: a plugin of QEMU 7.2 that sees every load and store of every vCPU.
 *
 * It counts them by the vCPU, by the node whose memory they touch, and by whether the instruction is the kernel's; from the
 * mark that the command begins to the mark that it ends (guest/mark.h), and between the other marks. It counts them raw, as
 * the CPU makes them, and behind two models of the CPU's cache, because a hit in a cache travels nowhere: one of eight ways,
 * as CPUs have, and a direct-mapped one of the same size.
 *
 * What it does not see: instruction fetches, page table walks, devices' own accesses (DMA). Its caches have one level, belong
 * to one vCPU, write nothing back, and are not kept coherent with others.
 *
 * Arguments
 *   range=START:SIZE:NODE  addresses, as the plugin interface tells them, of a node's memory; repeat
 *   cpu=NODE               the node of the next vCPU; repeat
 *   delay=NANOSECONDS      the model: each remote access that misses the cache takes that much longer
 *   out=FD                 where the counts go, one JSON object a line
 *
 * A vCPU's counters are written by its own thread only, so counting takes no lock. A mark reads all of them while the others
 * count on: what they do in that moment falls on either side of it. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

#include "../guest/mark.h"
#include "qemu-plugin.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum {
    CPUS_MAX = 64,
    RANGES_MAX = 64,
    NODES_MAX = 16,
    ELSEWHERE = NODES_MAX, /* memory of devices and firmware */
    HOMES = NODES_MAX + 1,
    LINE_BITS = 6,
    CACHE_LINES = 1 << 14, /* of 64 bytes: 1 MiB a vCPU */
    WAYS = 8,
    SETS = CACHE_LINES / WAYS,
};

enum mode { USER, KERNEL, MODES };

struct counts {
    uint64_t loads, stores, load_bytes, store_bytes, missed_loads, missed_stores, direct_missed_loads, direct_missed_stores;
};

struct vcpu {
    struct counts counts[HOMES][MODES];
    /* The line each place holds, plus one: none is zero. The ways of a set, the last used first. */
    uint64_t cache[SETS][WAYS], direct[CACHE_LINES];
};

struct snapshot {
    struct counts counts[CPUS_MAX][HOMES][MODES];
};

static struct {
    uint64_t start, end;
    int node;
} ranges[RANGES_MAX];
static int range_count, cpu_count, cpu_nodes[CPUS_MAX];
static struct vcpu *vcpus[CPUS_MAX];
static struct snapshot at_command, at_interval;
static int counting, in_interval;
static pthread_mutex_t marks = PTHREAD_MUTEX_INITIALIZER;
static uint64_t delay_ticks;
static FILE *out;

static int home_of(uint64_t address)
{
    for (int i = 0; i < range_count; i++)
        if (address >= ranges[i].start && address < ranges[i].end)
            return ranges[i].node;
    return ELSEWHERE;
}

/* Whether the vCPU's cache holds that line; it does from now on. */
static int cached(struct vcpu *vcpu, uint64_t line)
{
    uint64_t *set = vcpu->cache[line % SETS];
    int way = 0;
    while (way < WAYS - 1 && set[way] != line + 1)
        way++;
    int hit = set[way] == line + 1;
    for (; way; way--)
        set[way] = set[way - 1];
    set[0] = line + 1;
    return hit;
}

/* The same of the direct-mapped one. */
static int cached_direct(struct vcpu *vcpu, uint64_t line)
{
    uint64_t *place = &vcpu->direct[line % CACHE_LINES];
    int hit = *place == line + 1;
    *place = line + 1;
    return hit;
}

static void wait_ticks(uint64_t ticks)
{
    for (uint64_t end = __rdtsc() + ticks; __rdtsc() < end;)
        _mm_pause();
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *mode)
{
    if (!__atomic_load_n(&counting, __ATOMIC_RELAXED) || cpu >= (unsigned)cpu_count)
        return;
    struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
    if (!where)
        return;
    struct vcpu *vcpu = vcpus[cpu];
    int device = qemu_plugin_hwaddr_is_io(where);
    uint64_t told = qemu_plugin_hwaddr_phys_addr(where);
    int home = device ? ELSEWHERE : home_of(told);
    int missed = device || !cached(vcpu, told >> LINE_BITS);
    int direct_missed = device || !cached_direct(vcpu, told >> LINE_BITS);
    uint64_t bytes = UINT64_C(1) << qemu_plugin_mem_size_shift(info);
    struct counts *counts = &vcpu->counts[home][(uintptr_t)mode];
    if (qemu_plugin_mem_is_store(info)) {
        counts->stores++;
        counts->store_bytes += bytes;
        counts->missed_stores += missed;
        counts->direct_missed_stores += direct_missed;
    } else {
        counts->loads++;
        counts->load_bytes += bytes;
        counts->missed_loads += missed;
        counts->direct_missed_loads += direct_missed;
    }
    if (delay_ticks && missed && home != ELSEWHERE && home != cpu_nodes[cpu])
        wait_ticks(delay_ticks);
}

static void take(struct snapshot *snapshot)
{
    for (int cpu = 0; cpu < cpu_count; cpu++)
        memcpy(snapshot->counts[cpu], vcpus[cpu]->counts, sizeof snapshot->counts[cpu]);
}

static int empty(const struct counts *counts)
{
    return !(counts->loads | counts->stores);
}

/* Writes what was counted since the snapshot. */
static void report(const char *what, const struct snapshot *since)
{
    const char *separator = "";
    fprintf(out, "{\"%s\": [", what);
    for (int cpu = 0; cpu < cpu_count; cpu++)
        for (int home = 0; home < HOMES; home++)
            for (int mode = 0; mode < MODES; mode++) {
                const struct counts *now = &vcpus[cpu]->counts[home][mode], *then = &since->counts[cpu][home][mode];
                struct counts counts = {
                    now->loads - then->loads, now->stores - then->stores,
                    now->load_bytes - then->load_bytes, now->store_bytes - then->store_bytes,
                    now->missed_loads - then->missed_loads, now->missed_stores - then->missed_stores,
                    now->direct_missed_loads - then->direct_missed_loads, now->direct_missed_stores - then->direct_missed_stores,
                };
                if (empty(&counts))
                    continue;
                char name[16] = "null";
                if (home != ELSEWHERE)
                    snprintf(name, sizeof name, "%d", home);
                fprintf(out,
                    "%s{\"cpu\": %d, \"cpu_node\": %d, \"home\": %s, \"mode\": \"%s\", \"loads\": %" PRIu64 ", \"stores\": %" PRIu64
                    ", \"load_bytes\": %" PRIu64 ", \"store_bytes\": %" PRIu64 ", \"missed_loads\": %" PRIu64
                    ", \"missed_stores\": %" PRIu64
                    ", \"direct_missed_loads\": %" PRIu64 ", \"direct_missed_stores\": %" PRIu64 "}",
                    separator, cpu, cpu_nodes[cpu], name, mode == USER ? "user" : "kernel", counts.loads, counts.stores,
                    counts.load_bytes, counts.store_bytes, counts.missed_loads, counts.missed_stores,
                    counts.direct_missed_loads, counts.direct_missed_stores);
                separator = ", ";
            }
    fputs("]}\n", out);
    fflush(out);
}

static void on_mark(unsigned cpu, void *meaning)
{
    (void)cpu;
    pthread_mutex_lock(&marks);
    switch ((enum mark)(uintptr_t)meaning) {
    case MARK_COMMAND_BEGIN:
        take(&at_command);
        __atomic_store_n(&counting, 1, __ATOMIC_RELAXED);
        break;
    case MARK_COMMAND_END:
        __atomic_store_n(&counting, 0, __ATOMIC_RELAXED);
        report("command", &at_command);
        break;
    case MARK_BEGIN:
        take(&at_interval);
        in_interval = 1;
        break;
    case MARK_END:
        if (in_interval)
            report("interval", &at_interval);
        in_interval = 0;
        break;
    }
    pthread_mutex_unlock(&marks);
}

static int is_mark(struct qemu_plugin_insn *instruction)
{
    static const unsigned char begin[] = {0x0f, 0x1f, 0x84, 0x00}, end[] = {0x68, 0x6e, 0x6c};
    if (qemu_plugin_insn_size(instruction) != 8)
        return 0;
    const unsigned char *bytes = qemu_plugin_insn_data(instruction);
    return !memcmp(bytes, begin, sizeof begin) && !memcmp(bytes + 5, end, sizeof end);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        if (is_mark(instruction)) {
            uintptr_t meaning = ((const unsigned char *)qemu_plugin_insn_data(instruction))[4];
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, QEMU_PLUGIN_CB_NO_REGS, (void *)meaning);
        }
        /* On x86-64 Linux the upper half of the addresses is the kernel's. */
        uintptr_t mode = qemu_plugin_insn_vaddr(instruction) >> 63 ? KERNEL : USER;
        qemu_plugin_register_vcpu_mem_cb(instruction, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, (void *)mode);
    }
}

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

static uint64_t ticks_of(uint64_t wanted)
{
    uint64_t begin = nanoseconds(), first = __rdtsc(), passed;
    while ((passed = nanoseconds() - begin) < 20000000)
        ;
    return (__rdtsc() - first) * wanted / passed;
}

static int argument(const char *name, const char *value)
{
    if (!strcmp(name, "cpu") && cpu_count < CPUS_MAX) {
        cpu_nodes[cpu_count] = atoi(value);
        vcpus[cpu_count] = aligned_alloc(128, (sizeof(struct vcpu) + 127) / 128 * 128);
        if (!vcpus[cpu_count])
            return -1;
        memset(vcpus[cpu_count++], 0, sizeof(struct vcpu));
    } else if (!strcmp(name, "range") && range_count < RANGES_MAX) {
        uint64_t start, size;
        int node;
        if (sscanf(value, "%" SCNu64 ":%" SCNu64 ":%d", &start, &size, &node) != 3 || node < 0 || node >= NODES_MAX)
            return -1;
        ranges[range_count].start = start;
        ranges[range_count].end = start + size;
        ranges[range_count++].node = node;
    } else if (!strcmp(name, "delay")) {
        delay_ticks = ticks_of(strtoull(value, NULL, 10));
    } else if (!strcmp(name, "out")) {
        out = fdopen(atoi(value), "w");
    } else {
        return -1;
    }
    return 0;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int count, char **arguments)
{
    (void)info;
    for (int i = 0; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value)
            return -1;
        *value++ = 0;
        if (argument(arguments[i], value)) {
            fprintf(stderr, "counter: argument %s=%s\n", arguments[i], value);
            return -1;
        }
    }
    if (!out)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}

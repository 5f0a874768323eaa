// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Bytes that threads received from and sent to sockets of the network; and of what was received the CPU that processed
 * it, and the card with the queue it came by; of what was sent, the card its route leads to.
 *
 * That CPU is the one that the kernel noted in the socket when packets for it were processed last; it does so in softirq,
 * before packets go to a backlog, so it is never the reader's own by accident. A socket of datagrams without a peer has
 * none: those bytes are counted for CPU -1, as are all bytes sent. Card and queue are those of the last packet too; card 0
 * is none that is known, as of bytes sent without a route that lasts. Cards are numbered in each network namespace anew, so
 * they are told in the loader's only.
 *
 * What stays in the machine is left out: sockets whose route leads through a loopback device, and, while no route is known,
 * those between addresses of this machine. Only a socket of datagrams without a peer that is bound to all addresses
 * cannot be told from one of the network.
 *
 * Left out, too, are sockets of another namespace with a known route through a card there: the CPU would name one of the
 * loader's. A container's pair of virtual cards leads through those, so its sockets are counted. Bonds and VLANs over a card
 * are not told from pairs.
 *
 * Newer kernels have tracepoints for it (the programs named at_); on older ones the ends of functions do (after_). Not
 * seen: splice from a socket, and pages mapped instead of copied.
 */
#include "counting.h"
#include <bpf/bpf_endian.h>

#define AF_INET 2
#define AF_INET6 10
#define IFF_LOOPBACK 0x8
#define MSG_PEEK 0x2
#define MSG_ERRQUEUE 0x2000
#define NO_CPU (-1)
#define NO_QUEUE 0xffff
/* Of each of the two maps: entries of 80 bytes and buckets of 16, all made when it is loaded: 3 MiB. */
#define THREADS_TIMES_QUEUES_MAX 32768

/* The number of a network namespace; set by the loader. */
const volatile __u32 namespace = 0;

struct key {
	__u32 thread;
	__s32 cpu;
	__u32 card;
	__u32 queue;
};

struct count {
	__u64 received;
	__u64 sent;
};

struct counts {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_TIMES_QUEUES_MAX);
	__type(key, struct key);
	__type(value, struct count);
};

/* By card and queue; and what has none, or found no room there: that is known by CPU at least. */
struct counts counts_by_queue SEC(".maps"), counts SEC(".maps");

static __always_inline bool is_local_v4(__be32 address)
{
	return (address & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline bool is_local_v6(const __be32 address[4])
{
	if (address[0] || address[1])
		return 0;
	if (address[2] == bpf_htonl(0xffff))
		return is_local_v4(address[3]);
	return !address[2] && address[3] == bpf_htonl(1);
}

static __always_inline bool stays_in_machine(struct sock *sk, bool v6)
{
	struct dst_entry *route = sk->sk_dst_cache;
	__be32 here[4] = {}, there[4] = {};

	if (route)
		return route->dev->flags & IFF_LOOPBACK;
	if (!v6) {
		here[3] = sk->__sk_common.skc_rcv_saddr;
		there[3] = sk->__sk_common.skc_daddr;
		return is_local_v4(here[3]) || is_local_v4(there[3]) || (here[3] && here[3] == there[3]);
	}
	if (!bpf_core_field_exists(sk->__sk_common.skc_v6_daddr))
		return 0;
	for (int i = 0; i < 4; i++) {
		here[i] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		there[i] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[i];
	}
	if (is_local_v6(here) || is_local_v6(there))
		return 1;
	return (here[0] || here[3]) && here[0] == there[0] && here[1] == there[1] && here[2] == there[2] &&
	       here[3] == there[3];
}

/* A kernel without CONFIG_NET_NS has no such field, and one numbering of cards. */
static __always_inline bool is_of_namespace(struct sock *sk)
{
	return !bpf_core_field_exists(sk->__sk_common.skc_net.net) || sk->__sk_common.skc_net.net->ns.inum == namespace;
}

static __always_inline bool has_card_elsewhere(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;

	/* Pairs, bridges and tunnels have no device above them. */
	return route && !is_of_namespace(sk) && route->dev->dev.parent;
}

static __always_inline void note_route(struct sock *sk, struct key *key)
{
	struct dst_entry *route = sk->sk_dst_cache;

	if (route && is_of_namespace(sk))
		key->card = route->dev->ifindex;
}

static __always_inline void note_queue(struct sock *sk, struct key *key)
{
	__u16 queue;

	if (!bpf_core_field_exists(sk->__sk_common.skc_rx_queue_mapping) || !bpf_core_field_exists(sk->sk_rx_dst_ifindex))
		return;
	if (!is_of_namespace(sk))
		return;
	queue = sk->__sk_common.skc_rx_queue_mapping;
	if (queue == NO_QUEUE)
		return;
	key->card = sk->sk_rx_dst_ifindex;
	key->queue = queue;
}

/* The count of a key, made where there is none; none where there is no room. */
static __always_inline struct count *count_of(void *map, struct key *key)
{
	struct count first = {};
	struct count *known = bpf_map_lookup_elem(map, key);

	if (known)
		return known;
	bpf_map_update_elem(map, key, &first, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

static __always_inline int count(struct sock *sk, __s64 bytes, bool is_received)
{
	struct key key = { .thread = this_thread(), .cpu = NO_CPU };
	struct count *known = 0;
	unsigned short family;

	if (bytes <= 0 || !sk)
		return 0;
	family = sk->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	if (stays_in_machine(sk, family == AF_INET6) || has_card_elsewhere(sk))
		return 0;
	if (is_received) {
		key.cpu = sk->__sk_common.skc_incoming_cpu;
		note_queue(sk, &key);
	} else {
		note_route(sk, &key);
	}
	if (key.card)
		known = count_of(&counts_by_queue, &key);
	if (!known) {
		key.card = key.queue = 0;
		known = count_of(&counts, &key);
	}
	if (!known)
		miss(bytes);
	else if (is_received)
		__sync_fetch_and_add(&known->received, bytes);
	else
		__sync_fetch_and_add(&known->sent, bytes);
	return 0;
}

static __always_inline int count_received(struct sock *sk, __s64 bytes, int flags)
{
	return flags & (MSG_PEEK | MSG_ERRQUEUE) ? 0 : count(sk, bytes, 1);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(at_receive, struct sock *sk, int bytes, int flags)
{
	return count_received(sk, bytes, flags);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(at_send, struct sock *sk, int bytes, int flags)
{
	return count(sk, bytes, 0);
}

SEC("fexit/inet_recvmsg")
int BPF_PROG(after_receive, struct socket *sock, void *message, unsigned long size, int flags, int bytes)
{
	return count_received(sock->sk, bytes, flags);
}

SEC("fexit/inet6_recvmsg")
int BPF_PROG(after_receive_v6, struct socket *sock, void *message, unsigned long size, int flags, int bytes)
{
	return count_received(sock->sk, bytes, flags);
}

SEC("fexit/inet_sendmsg")
int BPF_PROG(after_send, struct socket *sock, void *message, unsigned long size, int bytes)
{
	return count(sock->sk, bytes, 0);
}

SEC("fexit/inet6_sendmsg")
int BPF_PROG(after_send_v6, struct socket *sock, void *message, unsigned long size, int bytes)
{
	return count(sock->sk, bytes, 0);
}

SEC("fexit/inet_sendpage")
int BPF_PROG(after_send_page, struct socket *sock, void *page, int offset, unsigned long size, int flags, long bytes)
{
	return count(sock->sk, bytes, 0);
}

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SYN cookies: the answer to a SYN for a listening socket of this host, whose queue has no room,
 * is sent from here. The kernel makes the cookie and takes the ACK that brings it back
 * (bpf_tcp_gen_syncookie, Linux 5.3), so that a connection never depends on this program; and it
 * says when its queue has no room, unless its own cookies are for every SYN.
 *
 * Answered is only what would pass, for an address of this host: a socket that listens on all
 * addresses would seem to be of each one that is forwarded or bridged. And only on an interface
 * where frames have the tags that they come with, since the answer has those of the SYN. The control
 * plane keeps saying which these are; without it, the kernel soon answers again.
 *
 * The answer has the option of the maximum segment size and no other: the kernel hides those of
 * the SYN in a timestamp that it alone can make. So such a connection has no window scaling.
 */
#ifndef WEIR_SYNCOOKIE_H
#define WEIR_SYNCOOKIE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "array.h"
#include "packet.h"
#include "parse.h"
#include "replies.h"
#include "stats.h"

#define MAX_TCP_WORDS 15

/* So long a queue that had room is not asked again, by a CPU. */
#define COOKIE_PAUSE 100000000ULL /* ns */
#define COOKIE_ROOMS 256
#define GOLDEN	     0x9e3779b1U /* Knuth's multiplicative hash */

/*
 * The window of the answer: what a sender sends before it hears from the socket itself (RFC 6928).
 */
#define COOKIE_WINDOW 14600

#define COOKIE_OPTION_END 0
#define COOKIE_OPTION_PAD 1
#define COOKIE_OPTION_MD5 19
#define COOKIE_OPTION_AO  29

/* Constants of the program for an interface. */
struct cookie_config {
	__u64 scope; /* of its network namespace, in struct cookie_address */
	__u16 mtu;   /* of the interface, 65535 at most */
	__u8 on;
	__u8 always; /* queues are asked for each SYN */
	__u8 pad[4];
};

struct cookie_address {
	__u32 addr[4]; /* or the index of an interface */
	__u64 scope;
	__u32 family; /* 0: an interface */
	__u32 pad;
};

/* A queue that had room, or a port without a listening socket. */
struct cookie_room {
	__u64 until; /* when it is asked again */
	__u32 addr;
	__u32 port;
};

struct cookie_cpu {
	__u32 tcp[MAX_TCP_WORDS +
		  1]; /* the header of this CPU's SYN, and what the verifier may read */
	__u32 cookie; /* its cookie */
	__u32 pad[15];
	struct cookie_room rooms[COOKIE_ROOMS];
};

_Static_assert(sizeof(struct cookie_cpu) % 64 == 0, "CPUs do not share cache lines");

/* max_entries: the number of possible CPUs */
ARRAY(cookie_cpus, struct cookie_cpu);

/* The addresses of this host, and interfaces, with the time until which they are known to be. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct cookie_address);
	__type(value, __u64);
} cookie_addresses SEC(".maps");

volatile const struct cookie_config syncookies = {};

/* Whether a packet with these TCP flags is a SYN that opens a connection. */
static __always_inline int opens(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Whether a packet comes from an address that no host has, to which the kernel answers nothing. */
static __always_inline int is_martian(const struct packet *p)
{
	__u8 first = bpf_ntohl(p->src[0]) >> 24;

	if (p->family == 4)
		return first == 0 || first == 127 || first >= 224;
	return first == 0xff || !(p->src[0] | p->src[1] | p->src[2]);
}

/*
 * Copies the TCP header of this CPU's packet, if it is a SYN in one buffer that a program can
 * answer. Returns its number of words, or 0.
 */
static __always_inline __u32 copy_syn(struct context *ctx, const struct packet *p, __u32 *tcp)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const void *next = data + p->network;
	__u32 words;

	if (p->reason != REASON_CLEAN || p->proto != IPPROTO_TCP || !p->has_ports || !p->plain ||
	    p->encapsulated || p->len != end - data)
		return 0;
	if (data + ETH_HLEN > end || next + sizeof(struct iphdr) + sizeof(struct tcphdr) > end)
		return 0;
	if (p->family == 4) {
		if (*(__u8 *)next != 0x45)
			return 0;
		next += sizeof(struct iphdr);
	} else {
		next += sizeof(struct ipv6hdr);
		if (next + sizeof(struct tcphdr) > end)
			return 0;
	}
	words = *(__u8 *)(next + TCP_LENGTH) >> 4;
	/* The compiler must not know the bound: it would leave that of the loop to the verifier. */
	asm volatile("" : "+r"(words));
	/* To a group or to all, the kernel does not answer either. */
	if (!opens(*(__u8 *)(next + TCP_FLAGS)) || words < TCP_WORDS || *(__u8 *)data & 1)
		return 0;
	for (int i = 0; i < MAX_TCP_WORDS; i++) {
		if (i >= words)
			break;
		if (next + sizeof(__u32) > end)
			return 0;
		tcp[i] = *(__u32 *)next;
		next += sizeof(__u32);
	}
	return words;
}

/* Whether a SYN is signed: its sender expects a signature of the answer. */
static __always_inline int is_signed(const __u32 *tcp, __u32 words)
{
	const __u8 *bytes = (const __u8 *)tcp;
	__u32 at = sizeof(__u32) * TCP_WORDS;

	for (int i = 0; i < sizeof(__u32) * (MAX_TCP_WORDS - TCP_WORDS); i++) {
		__u8 kind, length;

		if (at + 1 >= sizeof(__u32) * MAX_TCP_WORDS || at >= sizeof(__u32) * words)
			return 0;
		kind = bytes[at];
		length = bytes[at + 1];
		if (kind == COOKIE_OPTION_MD5 || kind == COOKIE_OPTION_AO)
			return 1;
		if (kind == COOKIE_OPTION_END)
			return 0;
		if (kind == COOKIE_OPTION_PAD)
			length = 1;
		if (!length)
			return 0;
		at += length;
	}
	return 0;
}

/* The cookie that the kernel makes for this CPU's SYN, or a negative number. */
static __always_inline __s64 ask_socket(struct context *ctx, const struct packet *p, __u32 *tcp,
					__u32 words)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const void *ip = data + p->network;
	struct bpf_sock_tuple t = {};
	__s64 cookie = -1;
	struct bpf_sock *s;

	if (ip + sizeof(struct ipv6hdr) > end)
		return -1;
	if (p->family == 4) {
		t.ipv4.saddr = p->src[0];
		t.ipv4.daddr = p->dst[0];
		__builtin_memcpy(&t.ipv4.sport, &tcp[0], sizeof(tcp[0]));
		s = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(t.ipv6.saddr, p->src, sizeof(p->src));
		__builtin_memcpy(t.ipv6.daddr, p->dst, sizeof(p->dst));
		__builtin_memcpy(&t.ipv6.sport, &tcp[0], sizeof(tcp[0]));
		s = bpf_skc_lookup_tcp(ctx, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!s)
		return -1;
	/* One that waits for its ACK, or is being closed, is left to the kernel. */
	if (s->state == BPF_TCP_LISTEN) {
		__u64 bytes = words * sizeof(__u32);

		/* Here, since verifiers before 5.17 forget the bounds of values on the stack. */
		asm volatile("" : "+r"(bytes));
		if (bytes < sizeof(struct tcphdr) || bytes > sizeof(__u32) * MAX_TCP_WORDS)
			cookie = -1;
		else if (p->family == 4)
			cookie = bpf_tcp_gen_syncookie(s, (void *)ip, sizeof(struct iphdr),
						       (void *)tcp, bytes);
		else
			cookie = bpf_tcp_gen_syncookie(s, (void *)ip, sizeof(struct ipv6hdr),
						       (void *)tcp, bytes);
	}
	bpf_sk_release(s);
	return cookie;
}

static __always_inline int is_known(const struct cookie_address *a, __u64 now)
{
	const __u64 *until = bpf_map_lookup_elem(&cookie_addresses, a);

	return until && now < *until;
}

/*
 * Whether this CPU's packet, which would pass, is a SYN for a listening socket of this host that is
 * to be answered from here. Its cookie is kept for send_cookie(). A global function.
 */
__noinline int make_cookie(struct context *ctx)
{
	struct cookie_address iface = {.addr = {ctx->ingress_ifindex}, .scope = syncookies.scope};
	struct cookie_address local = {.scope = syncookies.scope};
	__u32 cpu = bpf_get_smp_processor_id(), words, port;
	struct cpu_row *row = this_row();
	const struct packet *p;
	struct cookie_cpu *mine;
	struct cookie_room *room;
	__u64 now;
	__s64 cookie;

	mine = bpf_map_lookup_elem(&cookie_cpus, &cpu);
	if (!row || !mine) /* impossible */
		return 0;
	p = &row->packet;
	words = copy_syn(ctx, p, mine->tcp);
	if (!words || is_signed(mine->tcp, words) || is_martian(p))
		return 0;
	local.family = p->family;
	local.addr[0] = p->dst[0];
	for (int i = 1; i < 4 && p->family == 6; i++)
		local.addr[i] = p->dst[i];
	port = bpf_ntohl(p->ports) & 0xffff;
	room = &mine->rooms[(local.addr[0] ^ local.addr[3] ^ port * GOLDEN) * GOLDEN >> 24];
	now = bpf_ktime_get_ns();
	if (!syncookies.always && now < room->until && room->port == port &&
	    room->addr == (local.addr[0] ^ local.addr[3]))
		return 0;
	cookie = is_known(&iface, now) && is_known(&local, now)
			 ? ask_socket(ctx, p, mine->tcp, words)
			 : -1;
	if (cookie < 0) {
		room->until = now + COOKIE_PAUSE;
		room->addr = local.addr[0] ^ local.addr[3];
		room->port = port;
		return 0;
	}
	mine->cookie = cookie;
	return 1;
}

/* Makes the frame of this CPU's SYN that of its answer. Returns what becomes of it. A global function. */
__noinline int send_cookie(struct context *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), header, size, mss, tcp[TCP_WORDS + 1];
	struct cpu_row *row = this_row();
	const struct packet *p;
	struct cookie_cpu *mine;
	void *data, *end;
	__u16 *mac;

	mine = bpf_map_lookup_elem(&cookie_cpus, &cpu);
	if (!row || !mine) /* impossible */
		return XDP_PASS;
	p = &row->packet;
	header = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	size = p->network + header + sizeof(tcp);
	if (size < ETH_ZLEN)
		size = ETH_ZLEN;
	if (bpf_xdp_adjust_tail(ctx, (int)size - (int)p->len))
		return XDP_PASS;
	mss = syncookies.mtu - header - sizeof(struct tcphdr);
	tcp[0] = mine->tcp[0] << 16 | mine->tcp[0] >> 16;
	tcp[1] = bpf_htonl(mine->cookie);
	tcp[2] = bpf_htonl(bpf_ntohl(mine->tcp[1]) + 1);
	tcp[3] = bpf_htonl((TCP_WORDS + 1) << 28 | (TCP_SYN | TCP_ACK) << 16 | COOKIE_WINDOW);
	tcp[5] = bpf_htonl(2 << 24 | 4 << 16 | mss);
	set_checksum(p, tcp, sizeof(tcp));

	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN > end) /* impossible */
		return XDP_ABORTED;
	mac = data;
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		__u16 to = mac[i];

		mac[i] = mac[i + ETH_ALEN / 2];
		mac[i + ETH_ALEN / 2] = to;
	}
	data += p->network;
	if (p->family == 4) {
		if (data + sizeof(struct iphdr) + sizeof(tcp) > end)
			return XDP_ABORTED;
		answer_v4(p, data, sizeof(tcp));
		data += sizeof(struct iphdr);
	} else {
		if (data + sizeof(struct ipv6hdr) + sizeof(tcp) > end)
			return XDP_ABORTED;
		answer_v6(p, data, sizeof(tcp));
		data += sizeof(struct ipv6hdr);
	}
	__builtin_memcpy(data, tcp, sizeof(tcp));
	count(&row->answered, p->len);
	return XDP_TX;
}

#endif

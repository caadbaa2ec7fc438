/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that this host opens, remembered where they leave, so that their replies
 * pass the block lists. The twin of filter/verdict's Replies.
 *
 * Only what a program on this host sends opens a connection, or what it forwards for hosts
 * behind the interfaces that the configuration names, and only in a way in which nothing
 * answers a packet: a TCP SYN, or a UDP packet from a port that hosts connect from. So no
 * packet that comes in from elsewhere makes one. A UDP socket without a remote address, or
 * of another host, may still be a server's: what it sends does not prolong a connection, and
 * when that has expired, it opens none to the same address for as long again. A source that
 * was being served when it was listed is cut off by then.
 *
 * The maps are exact, and evict what was used least recently. Spoofed sources can have such a
 * server answer any number of addresses, so what sockets without a remote address send has a
 * map of its own: it evicts none of the other connections.
 */
#ifndef WEIR_REPLIES_H
#define WEIR_REPLIES_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "context.h"
#include "failsafe.h"
#include "scan.h"
#include "packet.h"
#include "parse.h"
#include "stats.h"

/* Constants of the program; times are in nanoseconds. */
struct reply_config {
	__u64 scope;   /* differs between network namespaces */
	__u64 opening; /* that a TCP connection lasts until it is established, or once it is closed */
	__u64 established;
	__u64 udp;
	__u32 ephemeral; /* the port from which on hosts connect */
	__u8 on;	 /* connections are remembered */
	__u8 pass;	 /* replies pass the block lists */
	__u8 pad[2];
};

struct connection {
	__u32 local[4];
	__u32 remote[4];
	__u32 ports; /* local, then remote, in network order */
	__u32 proto;
	__u64 scope;
};

struct connection_state {
	__u64 until; /* when it expires */
	__u8 closing;
	/* What follows is for collateral.h. */
	__u8 answered; /* both sides have taken part */
	__u8 pad[2];
	__u32 expected; /* what acknowledges the SYN that this host sent; 0: unknown */
};

/* The programs of an instance share it, in both directions. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection);
	__type(value, struct connection_state);
} connections SEC(".maps");

/* Those of UDP sockets without a remote address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection);
	__type(value, struct connection_state);
} unconnected SEC(".maps");

/* The indexes of the interfaces behind which hosts are whose connections count, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} reply_insides SEC(".maps") KEPT;

volatile const struct reply_config replies = {};

/* 1: conversations with what lists match are recorded: see collateral.h. Needs replies.on. */
volatile const __u8 collateral = 0;

/*
 * Connections of TCP that others open and this host answers. Spoofed sources can have it answer
 * any number, so they have a map of their own.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection);
	__type(value, struct connection_state);
} accepted SEC(".maps");

#define TCP_FIN		    0x01
#define TCP_RST		    0x04
#define TCP_SEQUENCE	    4 /* offsets in the header */
#define TCP_ACKNOWLEDGEMENT 8
#define TCP_LENGTH	    12

/* A TCP segment. */
struct segment {
	__u32 sequence;
	__u32 acknowledgement;
	__u8 flags;
	__u8 has_data;
};

static __always_inline int may_have_connection(const struct packet *p)
{
	return p->plain && p->has_ports && (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP);
}

static __always_inline void connection_of(struct connection *k, const struct packet *p)
{
	const __u32 *l = local(p), *r = remote(p);
	__u32 in = inbound_ports(p);

	*k = (struct connection){
		.ports = in << 16 | in >> 16, .proto = p->proto, .scope = replies.scope};
	k->local[0] = l[0];
	k->remote[0] = r[0];
	for (int i = 1; i < 4 && p->family == 6; i++) {
		k->local[i] = l[i];
		k->remote[i] = r[i];
	}
}

/* The flags of a plain TCP packet, or a negative number where the frame ends before. */
static __always_inline int tcp_flags(struct context *ctx, const struct packet *p)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = p->network, .frame = end_of(ctx, p)};
	__u8 copy, *at = peek(&c, &copy, 1);

	if (!at)
		return -1;
	skip(&c, TCP_FLAGS + (p->family == 4 ? (*at & 15) * 4 : sizeof(struct ipv6hdr)));
	at = peek(&c, &copy, 1);
	return at ? *at : -1;
}

/* Reads the header of a plain TCP packet. Returns 0 where the frame ends before. */
static __always_inline int read_segment(struct context *ctx, const struct packet *p,
					struct segment *s)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = p->network, .frame = end_of(ctx, p)};
	__u8 copy[TCP_FLAGS + 1], *at = peek(&c, copy, 6); /* up to the length */
	__u32 header, length;

	if (!at)
		return 0;
	header = ip_header(p, *at);
	length = p->family == 4 ? at[2] << 8 | at[3] : at[4] << 8 | at[5];
	/* The length of segments to be cut can be too large for the field, which is 0 then. */
	if (length && p->family == 6)
		length += header;
	skip(&c, header);
	at = peek(&c, copy, sizeof(copy));
	if (!at)
		return 0;
	s->sequence = bpf_ntohl(*(__u32 *)(at + TCP_SEQUENCE));
	s->acknowledgement = bpf_ntohl(*(__u32 *)(at + TCP_ACKNOWLEDGEMENT));
	s->flags = at[TCP_FLAGS];
	s->has_data = !length || length > header + (at[TCP_LENGTH] >> 4) * 4;
	return 1;
}

/*
 * Whether what this host sends shows that the other side has taken part. A host that opens
 * a connection sends nothing but SYNs and RSTs until its SYN is answered. One that accepts may
 * send an ACK to a spoofed source, but neither data nor a FIN.
 */
static __always_inline int shows_answer(const struct segment *s, int opened)
{
	if ((s->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK)
		return 0;
	return opened || s->has_data || s->flags & TCP_FIN;
}

/* The state of a connection that has not expired, or 0. */
static __always_inline struct connection_state *unexpired(struct connection_state *s, __u64 now)
{
	return s && now < s->until ? s : 0;
}

static __always_inline struct connection_state *find_state(const struct connection *k)
{
	struct connection_state *s = bpf_map_lookup_elem(&connections, k);

	return s || k->proto != IPPROTO_UDP ? s : bpf_map_lookup_elem(&unconnected, k);
}

/* Whether this CPU's packet is a reply. A global function, like those in lists.h. */
__noinline int find_connection(struct context *ctx)
{
	struct cpu_row *row = this_row();
	struct connection_state *s;
	struct connection k;
	int flags;

	if (!row || !may_have_connection(&row->packet))
		return 0;
	if (row->packet.proto == IPPROTO_TCP) {
		flags = tcp_flags(ctx, &row->packet);
		if (flags < 0 || (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
			return 0;
	}
	connection_of(&k, &row->packet);
	s = find_state(&k);
	return s && bpf_ktime_get_ns() < s->until;
}

/*
 * Whether a packet answers a connection that this host has opened. What is in a tunnel is
 * not known to.
 */
static __always_inline int is_reply(struct context *ctx, struct cpu_row *row,
				    const struct packet *p)
{
	if (!replies.pass || outgoing || p->encapsulated & IN_TUNNEL)
		return 0;
	keep(row, p);
	return find_connection(ctx);
}

#ifdef WEIR_TC

/*
 * Whether the socket that sends the packet of UDP receives from its destination alone. A packet
 * that a tunnel sends has the socket of its inner packet, if any.
 */
static __always_inline int is_connected(struct context *ctx, const struct packet *p)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->protocol != IPPROTO_UDP || sk->src_port != bpf_ntohl(p->ports) >> 16)
		return 0;
	/* A word, which it was before Linux 5.18, and which still can be read. */
	return !!*(volatile __u32 *)&sk->dst_port;
}

/* Whether a packet is sent by this host, or forwarded for a host behind it. */
static __always_inline int is_ours(const struct context *ctx)
{
	__u32 from = ctx->ingress_ifindex;

	return !from || bpf_map_lookup_elem(&reply_insides, &from);
}

/* Remembers the connection of this CPU's packet, which leaves. */
__noinline int remember_connection(struct context *ctx)
{
	struct cpu_row *row = this_row();
	struct connection_state *s, next = {};
	struct connection k;
	__u64 now = bpf_ktime_get_ns();
	struct segment segment = {};
	int flags, opened = 1;

	if (!row || !may_have_connection(&row->packet) || !is_ours(ctx))
		return 0;
	connection_of(&k, &row->packet);
	s = find_state(&k);
	if (row->packet.proto == IPPROTO_UDP) {
		if (bpf_ntohl(row->packet.ports) >> 16 < replies.ephemeral)
			return 0;
		next.until = now + replies.udp;
		if (is_connected(ctx, &row->packet)) {
			bpf_map_update_elem(&connections, &k, &next, BPF_ANY);
		} else if (!s || now >= s->until + replies.udp) {
			bpf_map_delete_elem(&connections, &k); /* where it would be found first */
			bpf_map_update_elem(&unconnected, &k, &next, BPF_ANY);
		}
		return 0;
	}
	if (!collateral)
		flags = tcp_flags(ctx, &row->packet);
	else
		flags = read_segment(ctx, &row->packet, &segment) ? segment.flags : -1;
	if (flags < 0)
		return 0;
	if ((flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN) {
		next.until = now + replies.opening;
		if (collateral)
			next.expected = segment.sequence + 1;
		bpf_map_update_elem(&connections, &k, &next, BPF_ANY);
		return 0;
	}
	s = unexpired(s, now);
	if (collateral) {
		if ((flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == (TCP_SYN | TCP_ACK)) {
			next.until = now + replies.opening;
			next.expected = segment.sequence + 1;
			bpf_map_update_elem(&accepted, &k, &next, BPF_ANY);
		} else if (!s) {
			s = unexpired(bpf_map_lookup_elem(&accepted, &k), now);
			opened = 0;
		}
	}
	if (!s)
		return 0;
	if (collateral && shows_answer(&segment, opened))
		s->answered = 1;
	if (flags & (TCP_FIN | TCP_RST))
		s->closing = 1;
	next.until = now + (s->closing ? replies.opening : replies.established);
	/* A RST prolongs nothing: whatever comes in is answered by one, once the socket is gone. */
	if (!(flags & TCP_RST) || next.until < s->until)
		s->until = next.until;
	return 0;
}

static __always_inline void remember(struct context *ctx, struct cpu_row *row,
				     const struct packet *p)
{
	if (!replies.on || !outgoing)
		return;
	keep(row, p);
	remember_connection(ctx);
}

#else

#define remember(ctx, row, p) ((void)0)

#endif

#endif

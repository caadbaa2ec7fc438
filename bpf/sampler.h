/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The sampler: records of one packet in n, whatever becomes of it. The twin is flood.Of in
 * filter/flood, which reads the same from a frame.
 *
 * A packet that is not taken costs a decrement: the number of packets until the next one is
 * drawn, between 1 and 2n - 1, when one is taken. All packets are counted by their reasons
 * anyway.
 *
 * Each CPU has two banks: the control plane reads one while packets are recorded in the other,
 * and sets its n when it exchanges them. A bank that is full goes on as a reservoir (Vitter,
 * "Random sampling with a reservoir", 1985): n grows with the packets seen, and a record takes
 * the place of a random one. So all records of a bank stand for equally many packets, however
 * fast the traffic grows, and without a control plane the sampler costs less and less.
 */
#ifndef WEIR_SAMPLER_H
#define WEIR_SAMPLER_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "collateral.h"
#include "context.h"
#include "inner.h"
#include "packet.h"
#include "parse.h"
#include "replies.h"
#include "scan.h"
#include "stats.h"

#define SAMPLER_BITS	12
#define SAMPLER_RECORDS (1U << SAMPLER_BITS) /* in a bank */
#define SAMPLER_MEAN	(1U << 24)	     /* the largest n */

/* flood.Fragment */
#define FRAGMENT_FIRST 1
#define FRAGMENT_LATER 2

/* flood.Conversing */
#define CONVERSING_UNKNOWN 0
#define STRANGER	   1
#define CONVERSANT	   2

struct sampler_record {
	__u32 src[4];
	__u32 dst[4];
	__u32 interface;
	__u32 len; /* of the whole frame, in bytes */
	__u8 payload[4];
	__u16 src_port; /* of ICMP the type and, in its place, the code */
	__u16 dst_port;
	__u16 length; /* of the IP packet, 65535 at most */
	__u16 id;
	__u16 window;
	__u8 family; /* 0: no addresses, and nothing else but the interface, reason and len */
	__u8 proto;
	__u8 flags;
	__u8 ttl;
	__u8 header_length;
	__u8 fragment;
	__u8 reason;
	__u8 conversing;
	__u8 pad[2];
};

_Static_assert(sizeof(struct sampler_record) == 64, "a record is one cache line");

struct sampler_bank {
	__u64 seen;  /* packets that the records stand for */
	__u32 count; /* of records */
	__u32 mean;  /* n, until the bank is full */
};

struct sampler_cpu {
	__u32 bank; /* which one is recorded in */
	__u32 pad[7];
	struct sampler_bank banks[2];
};

_Static_assert(sizeof(struct sampler_cpu) == 64, "CPUs do not share cache lines");

/* max_entries: the number of possible CPUs; and two banks for each. */
ARRAY(sampler_cpus, struct sampler_cpu);
ARRAY(sampler_records, struct sampler_record);

volatile const __u8 sampler_on = 0;

/* Which part of an IPv6 packet a packet is, whose extension headers begin at an offset. */
__noinline int fragment_v6(struct context *ctx, __u32 at, __u32 frame)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = at, .frame = frame};
	struct cpu_row *row = this_row();
	__u32 bytes = 0;
	__u8 proto, *next;

	c.at -= sizeof(struct ipv6hdr) - 6;
	next = peek(&c, &proto, sizeof(proto));
	if (!row || !next)
		return 0;
	proto = *next;
	for (int i = 0; i < MAX_EXT_HEADERS; i++) {
		const struct ipv6_ext_rule *rule = &ipv6_ext_rules[proto];
		struct ipv6_ext copy[2], *ext;

		if (!rule->follow)
			return 0;
		c.at = at + bytes;
		ext = peek(&c, copy, sizeof(copy));
		if (!ext)
			return 0;
		if (rule->fragment && ext->offset & bpf_htons(IPV6_OFFSET_MASK))
			return FRAGMENT_LATER;
		if (rule->fragment)
			return ext->offset & bpf_htons(1) ? FRAGMENT_FIRST : 0;
		proto = ext->next;
		bytes += ((ext->len & rule->len_mask) + rule->len_add) * rule->unit;
		if (bytes > MAX_EXT_BYTES)
			return 0;
		bytes = forget(&row->packet, bytes);
	}
	return 0;
}

/*
 * Whether this CPU's packet belongs to a conversation of this host. Of TCP it is known where
 * conversations are recorded, and their beginning was seen; of UDP where it may answer a program
 * that asks, since what a server answers does not show that anybody has asked.
 */
__noinline int conversing(struct context *ctx)
{
	struct cpu_row *row = this_row();
	__u64 now = bpf_ktime_get_ns();
	struct connection_state *s;
	struct segment g = {};
	int seen; /* the beginning of the conversation, by TCP */
	struct connection k;

	if (!row || !may_have_connection(&row->packet))
		return CONVERSING_UNKNOWN;
	connection_of(&k, &row->packet);
	if (row->packet.proto == IPPROTO_UDP) {
		if ((bpf_ntohl(row->packet.ports) & 0xffff) < replies.ephemeral)
			return CONVERSING_UNKNOWN;
		if (unexpired(bpf_map_lookup_elem(&connections, &k), now))
			return CONVERSANT;
		return unexpired(find_state(&k), now) ? CONVERSING_UNKNOWN : STRANGER;
	}
	if (!read_segment(ctx, &row->packet, &g))
		return CONVERSING_UNKNOWN;
	/* Without a state, it may have begun before the programs, or be forwarded. */
	seen = g.flags & TCP_SYN && !(g.flags & TCP_ACK);
	s = unexpired(bpf_map_lookup_elem(&connections, &k), now);
	if (s && is_answered(s, &g, 1))
		return CONVERSANT;
	seen |= !!s;
	s = unexpired(bpf_map_lookup_elem(&accepted, &k), now);
	if (s && is_answered(s, &g, 0))
		return CONVERSANT;
	return s || seen ? STRANGER : CONVERSING_UNKNOWN;
}

/* Reads the header of IP at the cursor. */
static __always_inline void record_ip(struct cursor *c, const struct packet *p,
				      struct sampler_record *r)
{
	__u8 copy[9], *ip = peek(c, copy, sizeof(copy));
	__u32 total;

	if (!ip)
		return;
	if (p->family == 4) {
		__u32 fragment = ip[6] << 8 | ip[7];

		total = ip[2] << 8 | ip[3];
		r->id = ip[4] << 8 | ip[5];
		r->ttl = ip[8];
		r->fragment = fragment & IPV4_OFFSET_MASK      ? FRAGMENT_LATER
			      : fragment & IPV4_MORE_FRAGMENTS ? FRAGMENT_FIRST
							       : 0;
	} else {
		total = ip[4] << 8 | ip[5];
		total += total ? sizeof(struct ipv6hdr) : 0;
		r->ttl = ip[7];
		r->fragment = fragment_v6(c->ctx, c->at + sizeof(struct ipv6hdr), c->frame);
	}
	if (!total) /* aggregated beyond 64 KiB */
		total = c->frame - c->at;
	r->length = total < 0xffff ? total : 0xffff;
}

/* Reads what follows the headers of IP, which the cursor is behind. */
static __always_inline void record_transport(struct cursor *c, const struct packet *p,
					     struct sampler_record *r)
{
	__u8 copy[20], *header, byte, *next;

	switch (p->proto) {
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		header = peek(c, copy, MIN_TRANSPORT);
		if (!header)
			return;
		r->src_port = header[0];
		r->dst_port = header[1];
		skip(c, MIN_TRANSPORT);
		break;
	case IPPROTO_TCP:
		header = peek(c, copy, sizeof(copy));
		if (!header)
			return;
		r->header_length = header[TCP_LENGTH] >> 4;
		r->flags = header[TCP_FLAGS];
		r->window = header[14] << 8 | header[15];
		skip(c, r->header_length * 4);
		break;
	case IPPROTO_UDP:
		skip(c, 8);
		break;
	}
	for (int i = 0; i < 4; i++) {
		next = peek(c, &byte, 1);
		if (!next)
			return;
		r->payload[i] = *next;
		skip(c, 1);
	}
}

/*
 * Parses the headers of this CPU's packet again, from that of IP on, and reads its fields. found is
 * the offset of the header << 16 | its EtherType.
 */
static __always_inline void record_fields(struct context *ctx, __u32 found, struct packet *p,
					  struct sampler_record *r)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .frame = end_of(ctx, p)};
	__u64 parsed = parse_at(ctx, found, c.frame);

	if (!p->family) /* impossible */
		return;
	r->family = p->family;
	r->proto = p->proto;
	r->src[0] = p->src[0];
	r->dst[0] = p->dst[0];
	for (int n = 1; n < 4 && p->family == 6; n++) {
		r->src[n] = p->src[n];
		r->dst[n] = p->dst[n];
	}
	if (p->has_ports) {
		r->src_port = bpf_ntohl(p->ports) >> 16;
		r->dst_port = bpf_ntohl(p->ports);
	}
	c.at = p->network;
	record_ip(&c, p, r);
	c.at = PARSED_OFFSET(parsed) & 0xffffff;
	if (c.at)
		record_transport(&c, p, r);
	r->conversing = collateral ? conversing(ctx) : CONVERSING_UNKNOWN;
}

/* Of a reason: the packet took the lean path, and is not this CPU's packet yet. */
#define SAMPLER_LEAN 0x100

/* Draws how many packets pass until the next record, one in n on average. */
static __always_inline void draw_gap(struct cpu_row *row, struct sampler_bank *b, __u32 random)
{
	/* Rounded at random: a full bank would favour the last packets where n is small. */
	__u64 n = (b->seen + bpf_get_prandom_u32() % SAMPLER_RECORDS) >> SAMPLER_BITS;

	if (n < b->mean)
		n = b->mean;
	if (n > SAMPLER_MEAN)
		n = SAMPLER_MEAN;
	row->sampler.gap = n ? 1 + ((2 * n - 1) * random >> 32) : 1;
	row->sampler.left = row->sampler.gap - 1;
}

/*
 * Records the packet, which leaves for this reason. A global function, like those in lists.h. It
 * parses the headers again, of a packet in a tunnel the outermost: they become this CPU's packet.
 */
__noinline int take_sample(struct context *ctx, __u32 reason)
{
	struct cpu_row *row = this_row();
	__u32 cpu = bpf_get_smp_processor_id(), i;
	struct sampler_cpu *mine = bpf_map_lookup_elem(&sampler_cpus, &cpu);
	struct sampler_record *r;
	struct sampler_bank *b;
	struct packet *p;
	int found = 0;

	if (!row || !mine) /* impossible */
		return 0;
	p = &row->packet;
	b = &mine->banks[mine->bank & 1];
	i = b->count;
	if (i < SAMPLER_RECORDS)
		b->count = i + 1;
	else
		i = bpf_get_prandom_u32();
	i = (2 * cpu + (mine->bank & 1)) * SAMPLER_RECORDS + i % SAMPLER_RECORDS;
	b->seen += row->sampler.gap;
	draw_gap(row, b, bpf_get_prandom_u32());
	r = bpf_map_lookup_elem(&sampler_records, &i);
	if (!r) /* impossible */
		return 0;
	*r = (struct sampler_record){.interface = interface_of(ctx), .reason = reason};
	if (reason & SAMPLER_LEAN) {
		clear(p);
		p->len = length_of(ctx);
		found = find_network(ctx);
		if (found > 0)
			p->network = found >> 16;
	} else {
		leave_tunnel(p);
		if (p->family)
			found = p->network << 16 | (p->family == 4 ? ETH_P_IP : ETH_P_IPV6);
	}
	r->len = p->len;
	if (found <= 0)
		return 0;
	record_fields(ctx, found, p, r);
	return 0;
}

/* Samples a packet that leaves, of an incoming one in n. */
static __always_inline void sample_packet(struct context *ctx, struct cpu_row *row, __u32 reason)
{
	if (!sampler_on)
		return;
	if (__builtin_expect(row->sampler.left != 0, 1))
		row->sampler.left -= 1;
	else
		take_sample(ctx, reason);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Headers in tunnels: IP in IP, GRE, VXLAN and GTP-U. The twin of Inner in
 * filter/packet and of Header in filter/verdict.
 *
 * Each header is judged by itself, from the outermost on: what a failsafe or an allow
 * list lets pass is not looked into, and the first header that is listed decides. Only
 * packets of these protocols that would pass get here, by way of a call, and the
 * headers are loaded.
 *
 * Of a tunnel's packet that is fragmented, only the first fragment has the header
 * within; see parse.h. What hides a header is treated as outside: a packet that ends within
 * one, or has more of them or of tags than are followed, leaves for the parser's reason.
 */
#ifndef WEIR_INNER_H
#define WEIR_INNER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "context.h"
#include "failsafe.h"
#include "lists.h"
#include "packet.h"
#include "parse.h"
#include "stats.h"

volatile const __u8 inner = 0; /* 1: headers in tunnels are matched */

/* More than real traffic nests. Packets with deeper headers are REASON_UNPARSED. */
#define MAX_INNER 4

/*
 * The greatest offset in a frame of an IP header's payload, and of an IP header in
 * it: so all of the latter's headers end within MAX_HEADERS.
 */
#define MAX_INNER_OFFSET 960

_Static_assert(MAX_INNER_OFFSET + 40 + MAX_EXT_BYTES + MIN_TRANSPORT <= MAX_HEADERS,
	       "headers are not read beyond");

#define GRE_CHECKSUM 0x8000
#define GRE_ROUTING  0x4000
#define GRE_KEY	     0x2000
#define GRE_SEQUENCE 0x1000
#define GRE_VERSION  0x0007

#ifndef ETH_P_WCCP
#define ETH_P_WCCP 0x883e
#endif

#define UDP_HEADER 8
#define VXLAN_PORT 4789
#define VXLAN_VNI  0x08 /* the network's number is valid, as it must be */

#define GTPU_PORT	    2152
#define GTPU_VERSION	    0x30 /* version 1, GTP and not GTP' */
#define GTPU_EXTENSION	    0x04
#define GTPU_OPTIONAL	    0x07 /* with any of these, four more bytes */
#define GTPU_PACKET	    0xff /* the message that carries one */
#define MAX_GTPU_EXTENSIONS 4

/* What carries a header. The Go names are in filter/packet; a test compares the two. */
enum tunnel {
	TUNNEL_NONE,
	TUNNEL_IP,
	TUNNEL_GRE,
	TUNNEL_VXLAN,
	TUNNEL_GTPU,
	TUNNEL_COUNT,
};

struct inner_count {
	__u64 headers; /* that were looked up */
	__u64 listed;  /* of these, those that a block list matches */
};

#define MAX_TUNNELS 8

struct inner_row {
	struct inner_count by_tunnel[MAX_TUNNELS];
	struct packet outer; /* this CPU's packet, while its row has a header within */
};

_Static_assert(TUNNEL_COUNT <= MAX_TUNNELS, "a row holds every tunnel");
_Static_assert(sizeof(struct inner_row) % 64 == 0, "CPUs do not share cache lines");

/* max_entries: the number of possible CPUs */
KEPT_ARRAY(inner_stats, struct inner_row);

static __always_inline struct inner_row *this_inner(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&inner_stats, &cpu);
}

static __always_inline enum tunnel tunnel_of(const struct packet *p)
{
	switch (p->proto) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return TUNNEL_IP;
	case IPPROTO_GRE:
		return TUNNEL_GRE;
	case IPPROTO_UDP:
		if (p->has_ports && (p->ports & bpf_htonl(0xffff)) == bpf_htonl(VXLAN_PORT))
			return TUNNEL_VXLAN;
		if (p->has_ports && (p->ports & bpf_htonl(0xffff)) == bpf_htonl(GTPU_PORT))
			return TUNNEL_GTPU;
	}
	return TUNNEL_NONE;
}

/*
 * These move the cursor past a tunnel's header and set *proto to the EtherType of the
 * payload. REASON_NOT_IP: nothing that is looked into.
 */

/*
 * What WCCP redirects is decapsulated like all else by Linux, which takes it for IP of the
 * version around it. In version 2 a header of four bytes precedes it.
 */
static __always_inline enum reason skip_wccp(struct cursor *c, __u8 family, __be16 *proto)
{
	__u8 copy, *first;

	/* The verifier of Linux 5.10 has no bound of the offset, so peek() must not omit its mask. */
	asm volatile("" : "+r"(c->at));
	first = peek(c, &copy, 1);
	if (!first)
		return REASON_TRUNCATED;
	if (*first >> 4 != 4)
		skip(c, 4);
	*proto = family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return REASON_CLEAN;
}

static __always_inline enum reason skip_gre(struct cursor *c, __u8 family, __be16 *proto)
{
	__be16 copy[2], *gre = peek(c, copy, sizeof(copy));
	__u16 flags;

	if (!gre)
		return REASON_TRUNCATED;
	flags = bpf_ntohs(gre[0]);
	*proto = gre[1];
	if (flags & (GRE_ROUTING | GRE_VERSION)) /* obsolete, and PPTP */
		return REASON_NOT_IP;
	skip(c, sizeof(copy) + 4 * (!!(flags & GRE_CHECKSUM) + !!(flags & GRE_KEY) +
				    !!(flags & GRE_SEQUENCE)));
	if (!flags && *proto == bpf_htons(ETH_P_WCCP))
		return skip_wccp(c, family, proto);
	return REASON_CLEAN;
}

static __always_inline enum reason skip_vxlan(struct cursor *c, __be16 *proto)
{
	__u8 copy[8], *vxlan;

	skip(c, UDP_HEADER);
	vxlan = peek(c, copy, sizeof(copy));
	if (!vxlan)
		return REASON_TRUNCATED;
	if (!(vxlan[0] & VXLAN_VNI))
		return REASON_NOT_IP;
	skip(c, sizeof(copy));
	*proto = bpf_htons(ETH_P_TEB);
	return REASON_CLEAN;
}

/* Nothing says what follows but its first four bits. */
static __always_inline enum reason skip_gtpu(struct cursor *c, __be16 *proto)
{
	__u8 gtp[8], more[4], next = 0;

	skip(c, UDP_HEADER);
	if (!peek(c, gtp, sizeof(gtp)))
		return REASON_TRUNCATED;
	if ((gtp[0] & 0xf0) != GTPU_VERSION || gtp[1] != GTPU_PACKET)
		return REASON_NOT_IP;
	skip(c, sizeof(gtp));
	if (gtp[0] & GTPU_OPTIONAL) {
		if (!peek(c, more, sizeof(more)))
			return REASON_TRUNCATED;
		skip(c, sizeof(more));
		if (gtp[0] & GTPU_EXTENSION)
			next = more[3];
	}
	for (int i = 0; next && i < MAX_GTPU_EXTENSIONS; i++) {
		/* Its length, in units of four bytes, and at its end the type of the next. */
		if (!peek(c, gtp, 1))
			return REASON_TRUNCATED;
		if (!gtp[0])
			return REASON_MALFORMED;
		skip(c, gtp[0] * 4 - 1);
		if (c->at > MAX_INNER_OFFSET)
			return REASON_UNPARSED;
		if (!peek(c, &next, 1))
			return REASON_TRUNCATED;
		skip(c, 1);
	}
	if (next)
		return REASON_UNPARSED;
	if (!peek(c, gtp, 1))
		return REASON_TRUNCATED;
	if (gtp[0] >> 4 == 4)
		*proto = bpf_htons(ETH_P_IP);
	else if (gtp[0] >> 4 == 6)
		*proto = bpf_htons(ETH_P_IPV6);
	return REASON_CLEAN;
}

static __always_inline enum reason skip_ethernet(struct cursor *c, __be16 *proto)
{
	skip(c, ETHERTYPE_OFFSET);
	return skip_tags(c, proto, MAX_VLAN_TAGS);
}

/*
 * Finds the IP header in the tunnel whose header is at this offset, as this CPU's packet
 * says, which ends at `end`. Returns its offset << 16 | its EtherType, or a negative reason:
 * that of REASON_NOT_IP where nothing in the tunnel is looked into.
 */
__noinline int find_inner(struct context *ctx, __u32 at, __u32 end)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = at, .frame = end};
	struct cpu_row *row = this_row();
	enum reason r = REASON_CLEAN;
	__be16 proto = 0;

	if (!row)
		return -REASON_NOT_IP;
	if (at > MAX_INNER_OFFSET)
		return -REASON_UNPARSED;
	switch (tunnel_of(&row->packet)) {
	case TUNNEL_IP:
		proto = row->packet.proto == IPPROTO_IPIP ? bpf_htons(ETH_P_IP)
							  : bpf_htons(ETH_P_IPV6);
		break;
	case TUNNEL_GRE:
		r = skip_gre(&c, row->packet.family, &proto);
		break;
	case TUNNEL_VXLAN:
		r = skip_vxlan(&c, &proto);
		break;
	case TUNNEL_GTPU:
		r = skip_gtpu(&c, &proto);
		break;
	default:
		return -REASON_NOT_IP;
	}
	if (r == REASON_CLEAN && proto == bpf_htons(ETH_P_TEB))
		r = skip_ethernet(&c, &proto);
	else if (r == REASON_CLEAN)
		r = skip_bare_tags(&c, &proto, MAX_VLAN_TAGS);
	if (r == REASON_CLEAN && is_past_end(&c))
		r = REASON_TRUNCATED;
	if (r == REASON_CLEAN && proto != bpf_htons(ETH_P_IP) && proto != bpf_htons(ETH_P_IPV6))
		r = REASON_NOT_IP;
	if (r == REASON_CLEAN && c.at > MAX_INNER_OFFSET)
		r = REASON_UNPARSED;
	return r == REASON_CLEAN ? c.at << 16 | bpf_ntohs(proto) : -r;
}

/* Makes the IP header that find_inner() found this CPU's packet; see parse_at(). */
static __always_inline __u64 enter(struct context *ctx, struct packet *p, __u32 found, __u32 end)
{
	p->family = 0;
	p->ports = 0;
	p->has_ports = 0;
	p->exempt = 0;
	p->plain = 0;
	return parse_at(ctx, found, end);
}

/*
 * The number of the block list that drops a header in this CPU's packet, or LIST_NONE.
 * If there is one, the header is this CPU's packet until leave_tunnel(). Otherwise the
 * packet's reason says what is wrong with the headers, unless one lets it pass; and trial is
 * returned, or where that is LIST_NONE, the number of a list on trial, plus ON_TRIAL.
 */
__noinline int match_inner(struct context *ctx, int trial)
{
	struct inner_row *in = this_inner();
	struct cpu_row *row = this_row();
	enum reason r;
	struct packet *p;
	__u32 tunnel;
	__u64 parsed;
	__u64 *first = rules.on_trial ? tunnel_trial() : 0;
	int found, list, on_trial, left = MAX_INNER;

	if (!row || !in) /* impossible */
		return trial;
	p = &row->packet;
	if (first)
		*first = 0;
	in->outer = *p;
	parsed = enter(ctx, p, p->network << 16 | (p->family == 4 ? ETH_P_IP : ETH_P_IPV6),
		       end_of(ctx, p));
	for (;;) {
		r = PARSED_REASON(parsed);
		tunnel = tunnel_of(p);
		if (r == REASON_CLEAN && (!tunnel || !PARSED_OFFSET(parsed)))
			break;
		if (is_allowed(ctx, row, p)) {
			r = REASON_CLEAN;
			break;
		}
		if (r != REASON_CLEAN)
			break;
		found = find_inner(ctx, PARSED_OFFSET(parsed), PARSED_END(parsed));
		if (found < 0) {
			r = found == -REASON_NOT_IP ? REASON_CLEAN : -found;
			break;
		}
		parsed = enter(ctx, p, found, PARSED_END(parsed));
		if (!p->family) {
			r = PARSED_REASON(parsed);
			break;
		}
		if (!left) {
			r = REASON_UNPARSED;
			break;
		}
		left--;
		barrier();
		in->by_tunnel[tunnel % MAX_TUNNELS].headers += 1;
		if (failsafe(&failsafe_config, p)) {
			r = REASON_CLEAN;
			break;
		}
		list = called_match_block();
		list = apply_rules(ctx, p, list);
		if (list != LIST_NONE)
			in->by_tunnel[tunnel % MAX_TUNNELS].listed += 1;
		on_trial = rules.on_trial && list > 0 && list & ON_TRIAL;
		if (on_trial && first && !*first)
			*first = list;
		if (list != LIST_NONE && !on_trial) {
			p->encapsulated |= IN_TUNNEL;
			return list;
		}
	}
	in->outer.reason = r;
	*p = in->outer;
	return trial == LIST_NONE && first && *first ? *first : trial;
}

/* Makes the outermost header this CPU's packet again. What is counted is the one listed. */
static __always_inline void leave_tunnel(struct packet *p)
{
	struct inner_row *in;

	if (!inner || !(p->encapsulated & IN_TUNNEL))
		return;
	in = this_inner();
	if (in) {
		__u32 reason = p->reason;

		*p = in->outer;
		p->reason = reason;
	}
}

#endif

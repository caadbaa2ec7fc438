/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ethernet with VLAN tags, IPv4 with options and fragments, IPv6 with
 * extension headers, TCP, UDP, SCTP, ICMP. The twin of package filter/packet.
 *
 * One convention: a cursor goes in and is moved past the header, and a reason comes
 * out; REASON_CLEAN means continue.
 *
 * A listed address must match whatever follows the IP header, so the addresses are
 * kept even when the rest of the packet is bad: the reason that parse() returns is
 * that for which the packet leaves if no list matches.
 *
 * A later fragment has no transport header and matches only shapes without ports.
 * The rest of a listed flow then cannot be reassembled, because the first fragment,
 * which has the ports, was dropped.
 */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "packet.h"

/*
 * Provider bridges use two, a few networks more. But a host removes any number of
 * tags with VID 0 and delivers the packet behind them, so frames with more tags than
 * this are dropped.
 */
#define MAX_VLAN_TAGS 8

_Static_assert(MAX_VLAN_TAGS <= 15, "parse_ethernet() uses four bits of the number");

/*
 * Extension headers are followed up to these limits, whichever comes first. All
 * headers are then within the first 1100 bytes, which every driver puts in the linear
 * part of a multi-buffer packet unless it splits at a fixed size.
 */
#define MAX_EXT_HEADERS 16
#define MAX_EXT_BYTES	1024

/* TCP, UDP, SCTP and ICMP have at least this much, also in a first fragment (RFC 791). */
#define MIN_TRANSPORT 8

#define LENGTH_UNKNOWN 0xffffffffU

#define IPV4_OFFSET_MASK 0x1fff
#define IPV6_OFFSET_MASK 0xfff8

#define IPPROTO_HIP   139
#define IPPROTO_SHIM6 140

#define ICMPV6_ND_FIRST 133 /* router solicitation */
#define ICMPV6_ND_LAST	137 /* redirect */

volatile const __u8 frags = 0; /* 1: the kernel has multi-buffer XDP */

struct cursor {
	void *pos;
	void *end;
	__u32 left; /* bytes up to the end, by the IP header */
	__u8 paged; /* the packet continues beyond end, in further buffers */
};

static __always_inline enum reason ends_early(const struct cursor *c)
{
	return c->paged ? REASON_UNPARSED : REASON_TRUNCATED;
}

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/*
 * Returns how many tags to skip, up to MAX_VLAN_TAGS; the frame may end within the
 * last. A global function, whose result the verifier does not know: otherwise it
 * would walk the rest of the program once for each number.
 */
__noinline int vlan_tags(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	void *end = (void *)(long)ctx->data_end;
	int n = 1;

	for (; n < MAX_VLAN_TAGS && (void *)(tag + 1) <= end && is_vlan(tag->proto); n++)
		tag++;
	return n;
}

static __always_inline enum reason parse_ethernet(struct xdp_md *ctx, struct cursor *c,
						  __be16 *proto)
{
	struct ethhdr *eth = c->pos;

	if ((void *)(eth + 1) > c->end)
		return ends_early(c);
	c->pos = eth + 1;
	*proto = eth->h_proto;
	if (!is_vlan(*proto))
		return REASON_CLEAN;

	c->pos += (vlan_tags(ctx) & 15) * sizeof(struct vlan_tag); /* for the verifier */
	if (c->pos > c->end)
		return ends_early(c);
	*proto = ((struct vlan_tag *)c->pos)[-1].proto;
	return is_vlan(*proto) ? REASON_OVERTAGGED : REASON_CLEAN;
}

static __always_inline enum reason parse_transport(struct cursor *c, struct packet *p)
{
	__u32 *words = c->pos;

	switch (p->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		if (c->left < MIN_TRANSPORT)
			return REASON_TRUNCATED;
		if ((void *)(words + 2) > c->end)
			return ends_early(c);
		p->ports = words[0];
		p->has_ports = 1;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (c->left < MIN_TRANSPORT)
			return REASON_TRUNCATED;
		if ((void *)(words + 2) > c->end)
			return ends_early(c);
		break;
	}
	return REASON_CLEAN;
}

static __always_inline enum reason parse_ipv4(struct cursor *c, struct packet *p)
{
	struct iphdr *ip = c->pos;
	__u32 header, total;

	if ((void *)(ip + 1) > c->end)
		return ends_early(c);
	if (ip->version != 4)
		return REASON_MALFORMED;

	p->family = 4;
	p->src[0] = ip->saddr;
	p->dst[0] = ip->daddr;
	p->proto = ip->protocol;

	header = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (header < sizeof(*ip) || (total && total < header))
		return REASON_MALFORMED;
	/* 0 in a packet that was aggregated beyond 64 KiB */
	c->left = total ? total - header : LENGTH_UNKNOWN;
	if (ip->frag_off & bpf_htons(IPV4_OFFSET_MASK))
		return REASON_CLEAN;
	c->pos += header;
	return parse_transport(c, p);
}

struct ipv6_ext {
	__u8 next;
	__u8 len;
	__be16 offset; /* in a fragment header */
};

/*
 * How to skip an extension header: (len & len_mask) + len_add units of `unit` bytes.
 * A table instead of branches, since every branch in the loop would double the paths
 * that the verifier walks.
 */
struct ipv6_ext_rule {
	__u8 follow; /* 0: not an extension header */
	__u8 fragment;
	__u8 len_mask;
	__u8 len_add;
	__u8 unit;
};

#define EXT_OPTIONS {.follow = 1, .len_mask = 0xff, .len_add = 1, .unit = 8}

static const struct ipv6_ext_rule ipv6_ext_rules[256] = {
	[IPPROTO_HOPOPTS] = EXT_OPTIONS,
	[IPPROTO_ROUTING] = EXT_OPTIONS,
	[IPPROTO_FRAGMENT] = {.follow = 1, .fragment = 1, .len_add = 1, .unit = 8},
	[IPPROTO_AH] = {.follow = 1, .len_mask = 0xff, .len_add = 2, .unit = 4},
	[IPPROTO_DSTOPTS] = EXT_OPTIONS,
	[IPPROTO_MH] = EXT_OPTIONS,
	[IPPROTO_HIP] = EXT_OPTIONS,
	[IPPROTO_SHIM6] = EXT_OPTIONS,
};

/* Moves the cursor to the transport header. Sets *fragment if there is a fragment header. */
static __always_inline enum reason parse_ipv6_ext(struct cursor *c, struct packet *p,
						  __u8 *fragment, __u8 *later)
{
	void *first = c->pos;
	__u32 bytes = 0;

	for (int i = 0; i <= MAX_EXT_HEADERS; i++) {
		const struct ipv6_ext_rule *rule = &ipv6_ext_rules[p->proto];
		struct ipv6_ext *ext = c->pos;
		__u32 len;

		if (!rule->follow)
			return REASON_CLEAN;
		if (i == MAX_EXT_HEADERS)
			break;
		if (c->left < 8)
			return REASON_TRUNCATED;
		if (c->pos + 8 > c->end)
			return ends_early(c);

		*fragment |= rule->fragment;
		p->proto = ext->next;
		if (rule->fragment && ext->offset & bpf_htons(IPV6_OFFSET_MASK)) {
			*later = 1;
			return REASON_CLEAN;
		}
		len = ((ext->len & rule->len_mask) + rule->len_add) * rule->unit;
		if (c->left < len)
			return REASON_TRUNCATED;
		bytes += len;
		if (bytes > MAX_EXT_BYTES)
			return REASON_UNPARSED;
		c->left -= len;
		/*
		 * Not `pos += len`: the verifier would add up the bounds of each
		 * len, and refuses pointers beyond 64 KiB.
		 */
		c->pos = first + bytes;
		if (c->pos > c->end)
			return ends_early(c);
	}
	return REASON_UNPARSED;
}

static __always_inline enum reason parse_ipv6(struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip = c->pos;
	__u8 fragment = 0, later = 0;
	__u32 payload;
	enum reason r;

	if ((void *)(ip + 1) > c->end)
		return ends_early(c);
	if (ip->version != 6)
		return REASON_MALFORMED;

	p->family = 6;
	__builtin_memcpy(p->src, &ip->saddr, sizeof(p->src));
	__builtin_memcpy(p->dst, &ip->daddr, sizeof(p->dst));
	p->proto = ip->nexthdr;

	payload = bpf_ntohs(ip->payload_len);
	/* 0 in a jumbogram, and in a packet that was aggregated beyond 64 KiB */
	c->left = payload ? payload : LENGTH_UNKNOWN;
	c->pos = ip + 1;

	r = parse_ipv6_ext(c, p, &fragment, &later);
	if (r != REASON_CLEAN || later)
		return r;
	r = parse_transport(c, p);
	if (r == REASON_CLEAN && p->proto == IPPROTO_ICMPV6 && !fragment && ip->hop_limit == 255) {
		/* RFC 4861: from this link, hence 255; RFC 6980: never in fragments. */
		__u8 *type = c->pos;

		if ((void *)(type + 1) <= c->end)
			p->nd = *type >= ICMPV6_ND_FIRST && *type <= ICMPV6_ND_LAST;
	}
	return r;
}

static __always_inline enum reason parse(struct xdp_md *ctx, struct cursor *c, struct packet *p)
{
	void *start = c->pos;
	__be16 proto;
	enum reason r;

	p->family = 0;
	p->ports = 0;
	p->has_ports = 0;
	p->nd = 0;
	p->loop = 0;
	r = parse_ethernet(ctx, c, &proto);
	if (r != REASON_CLEAN)
		return r;
	p->network = c->pos - start;
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		return parse_ipv4(c, p);
	case bpf_htons(ETH_P_IPV6):
		return parse_ipv6(c, p);
	case bpf_htons(ETH_P_ARP):
		return REASON_ARP;
	}
	return REASON_NOT_IP;
}

#endif

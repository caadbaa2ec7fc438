/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Multicast by filters (Broder and Mitzenmacher's survey, section 7.3, after
 * Grönvall): instead of a list of interfaces for each group, each egress interface
 * has a Bloom filter of its groups. The kernel copies a packet to all of them, and
 * the program of each entry in the device map drops the copy if its filter does not
 * contain the group. The twin of filter/multicast.
 *
 * A filter of the groups of all ports comes first: packets to other groups go up the
 * stack, as without weir, at the cost of one line.
 */
#ifndef WEIR_MULTICAST_H
#define WEIR_MULTICAST_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "hash.h"
#include "key.h"
#include "loop.h"
#include "parse.h"
#include "stats.h"

/* Of the generation; all filters have the same size. */
struct multicast_filters {
	__u32 ports; /* egress interfaces, numbered from 1; 0: multicast is off */
	__u32 lines; /* of each filter */
	__u32 first; /* bits of a group in its first line */
	__u32 rest;  /* and in its second */
};

/* Of the program for one port. */
struct multicast_port {
	__u32 port;
	__u8 mac[ETH_ALEN]; /* the interface's own */
	__u8 edge;	    /* 1: of the domain that detects loops */
	__u8 pad;
};

volatile const struct multicast_filters multicast = {};
volatile const struct multicast_port egress = {};

/* The filter of the groups of all ports. */
#define ANY_PORT 0

/* multicast.lines for ANY_PORT, then as many for each port. */
ARRAY(multicast_lines, struct line);

/* The answers of a filter, by CPU. */
struct multicast_row {
	struct counter listed;
	struct counter unlisted;
	__u64 pad[4];
};

_Static_assert(sizeof(struct multicast_row) == 64, "rows do not share cache lines");

/* max_entries: a row for each filter, for each possible CPU */
ARRAY(multicast_stats, struct multicast_row);

/* The least MTU of the interfaces at the ports. */
ARRAY(multicast_mtu, __u64);

/* Port n is entry n - 1. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} multicast_devices SEC(".maps");

/* The heads of keys dst/32 and dst/128, as the hash reads them. */
#define HEAD_GROUP4 (32 << 16)
#define HEAD_GROUP6 (FIELD_V6 | 128 << 16)

static __always_inline __u64 hash_group4(const struct iphdr *ip)
{
	struct key k = {{pair_head(HEAD_GROUP4, ip->daddr)}};

	return key_hash(KEY_V4, k, &key_secret);
}

static __always_inline __u64 hash_group6(const struct ipv6hdr *ip)
{
	const __u32 *a = ip->daddr.in6_u.u6_addr32;
	struct key k = {{pair_head(HEAD_GROUP6, a[0]), pair(a[1], a[2]), le32(a[3])}};

	return key_hash(KEY_V6, k, &key_secret);
}

static __always_inline int multicast_line_test(__u32 filter, __u64 h, __u32 bits)
{
	__u32 i = filter * multicast.lines + hash_reduce(h, multicast.lines);
	struct line *l = bpf_map_lookup_elem(&multicast_lines, &i);

	return l && line_test(l, h, bits);
}

/* Whether a filter contains the group with hash h. */
static __always_inline int multicast_test(__u32 filter, __u64 h)
{
	return multicast_line_test(filter, h, multicast.first) &&
	       (!multicast.rest || multicast_line_test(filter, hash_nth(h, 1), multicast.rest));
}

/* The same, which also counts a packet of len bytes. */
static __always_inline int multicast_listed(__u32 filter, __u64 h, __u32 len)
{
	__u32 i = bpf_get_smp_processor_id() * (multicast.ports + 1) + filter;
	struct multicast_row *row = bpf_map_lookup_elem(&multicast_stats, &i);
	int listed = multicast_test(filter, h);

	if (row)
		count(listed ? &row->listed : &row->unlisted, len);
	return listed;
}

/*
 * Whether a router may forward packets of the source: not a martian (RFC 1812, section
 * 5.3.7: the networks 0 and 127, and everything from 224.0.0.0 on), and not link-local
 * (RFC 3927, section 7).
 */
static __always_inline int source4(__u32 source)
{
	__u8 network = source >> 24;

	return network && network != 127 && network < 224 && source >> 16 != 0xa9fe;
}

/*
 * The same of IPv6: not in ::/64, with the loopback and the unspecified address, not
 * link-local, and not multicast (RFC 4291, sections 2.5 and 2.7).
 */
static __always_inline int source6(const __u32 *source)
{
	return (source[0] | source[1]) &&
	       (source[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000) &&
	       (source[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000);
}

/* Whether the packet has a filter of this node's domain, and no other option. */
static __always_inline int has_filter(void *ip, void *end, int v6)
{
	int foreign = 0;

	return loop_node.words && find_option(ip, end, v6, &foreign);
}

/*
 * Whether a router would forward the packet to a group: not to 224.0.0.0/24, which is
 * link-local, and not IGMP. Packets with options are left to the stack, unless that is
 * the filter of a domain that detects loops.
 */
static __always_inline int routable4(struct iphdr *ip, void *end)
{
	__u32 group = bpf_ntohl(ip->daddr);

	return (*(__u8 *)ip == 0x45 || has_filter(ip, end, 0)) && ip->ttl > 1 &&
	       ip->protocol != IPPROTO_IGMP && group >> 28 == 0xe && group >> 8 != 0xe00000 &&
	       source4(bpf_ntohl(ip->saddr));
}

/*
 * The same of IPv6: a scope wider than the link (RFC 4291, section 2.7). MLD, like all
 * packets that each router must examine, has hop-by-hop options and is left to the
 * stack.
 */
static __always_inline int routable6(struct ipv6hdr *ip, void *end)
{
	return *(__u8 *)ip >> 4 == 6 && ip->hop_limit > 1 &&
	       (ip->nexthdr != IPPROTO_HOPOPTS || has_filter(ip, end, 1)) &&
	       ip->daddr.in6_u.u6_addr8[0] == 0xff && (ip->daddr.in6_u.u6_addr8[1] & 0xf) > 2 &&
	       source6(ip->saddr.in6_u.u6_addr32);
}

/* Decrements the TTL and updates the checksum (RFC 1624). */
static __always_inline void hop4(struct iphdr *ip)
{
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->check = sum + (sum >= 0xffff);
	ip->ttl -= 1;
}

/* Whether a frame has a group address: most do not. */
static __always_inline int is_multicast_frame(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) <= (void *)(long)ctx->data_end && eth->h_dest[0] & 1;
}

/*
 * Returns 1, and the hash of its group, for a frame that is to be forwarded if a port
 * wants that. A frame with a VLAN tag is not of the ports' network, and the kernel cannot
 * copy one in several buffers.
 */
static __always_inline int multicast_group(struct xdp_md *ctx, __u64 *h)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);

	if ((void *)(ip4 + 1) > end)
		return 0;
	if (frags && bpf_xdp_get_buff_len(ctx) != end - (void *)eth)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && routable4(ip4, end))
		*h = hash_group4(ip4);
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end &&
		 routable6(ip6, end))
		*h = hash_group6(ip6);
	else
		return 0;
	return 1;
}

/*
 * Returns XDP_REDIRECT for a multicast packet to a group of some port, whose TTL it
 * decrements, else XDP_PASS: the packet goes up the stack. A global function, which the
 * verifier checks in isolation.
 */
__noinline int multicast_forward(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);
	__u64 h;

	if ((void *)(ip4 + 1) > end)
		return XDP_PASS;
	if (!multicast_group(ctx, &h) || !multicast_listed(ANY_PORT, h, end - (void *)eth))
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		hop4(ip4);
	else if ((void *)(ip6 + 1) <= end)
		ip6->hop_limit -= 1;
	return bpf_redirect_map(&multicast_devices, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
}

/* Whether a packet is to a group. */
static __always_inline int is_group(const struct packet *p)
{
	__u32 mask = bpf_htonl(p->family == 6 ? 0xff000000 : 0xf0000000);

	return (p->dst[0] & mask) == (bpf_htonl(p->family == 6 ? 0xff000000 : 0xe0000000));
}

/*
 * Inserts or updates the filter of this CPU's packet to a group, which passes. At an edge
 * it gets one if it is going to be forwarded; weir_egress removes it.
 */
__noinline int carry_group(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	enum loop_outcome outcome;
	struct cpu_row *row = this_row();
	__u32 zero = 0, len = 0, by;
	__u64 h, *mtu = bpf_map_lookup_elem(&multicast_mtu, &zero);
	int v6;

	if (!row || !mtu || row->packet.encapsulated || row->packet.reason == REASON_ND ||
	    row->packet.reason == REASON_DHCP)
		return 0;
	if (carries_filter(&row->packet)) {
		visit_loop(ctx, &row->packet);
		return 0;
	}
	if (!loop_edge || !multicast_group(ctx, &h) || !multicast_test(ANY_PORT, h))
		return 0;
	v6 = row->packet.family == 6;
	outcome = obstacle(network_of(ctx, row), end, v6, 1, &len);
	if (outcome == LOOP_INSERTED) {
		by = overhead_of(&row->packet);
		if (len + by + (v6 ? LOOP_HEADER_V6 : 0) > *mtu)
			outcome = LOOP_TOO_LARGE;
		else
			outcome = insert_filter(ctx, row, len + by, by);
	}
	count_loop(outcome);
	return 0;
}

/* Removes the filter of a copy that leaves the domain. */
__noinline int uncarry_group(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end, *ip = eth + 1;
	struct loop_option *o;
	int foreign = 0, v6;

	if (ip + LOOP_HEADER_V4 > end)
		return 0;
	v6 = eth->h_proto == bpf_htons(ETH_P_IPV6);
	if (v6 && ip + LOOP_HEADER_V6 > end)
		return 0;
	o = find_option(ip, end, v6, &foreign);
	if (o)
		remove_option(ctx, ip, o, v6,
			      (sizeof(*eth) - 2 + (v6 ? LOOP_HEADER_V6 : LOOP_HEADER_V4)) / 4,
			      option_size() + (v6 ? LOOP_PAD_V6 : 0));
	return 0;
}

/* The action on a port's own copy: it is sent or dropped. */
static __always_inline int multicast_send(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);
	__u64 h;

	if ((void *)(ip4 + 1) > end) /* impossible: multicast_forward() has read it */
		return XDP_DROP;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		h = hash_group4(ip4);
	else if ((void *)(ip6 + 1) <= end)
		h = hash_group6(ip6);
	else
		return XDP_DROP;
	if (!multicast_listed(egress.port, h, end - (void *)eth))
		return XDP_DROP;
	if (egress.edge && loop_node.words) {
		uncarry_group(ctx);
		eth = (void *)(long)ctx->data;
		if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
			return XDP_DROP;
	}
	for (int i = 0; i < ETH_ALEN; i++)
		eth->h_source[i] = egress.mac[i];
	return XDP_PASS;
}

#endif

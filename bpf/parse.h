/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ethernet with VLAN tags, PPPoE sessions, MPLS label stacks, IPv4 with options and
 * fragments, IPv6 with extension headers, TCP, UDP, UDP-Lite, SCTP, DCCP, ICMP. The
 * twin of package filter/packet.
 *
 * One convention: a cursor goes in and is moved past the header, and a reason comes
 * out; REASON_CLEAN means continue.
 *
 * Headers are read in place. A frame that has them beyond its first buffer, or another
 * header before IP, is parsed again from its beginning, by loading each header: see
 * peek(). The result does not depend on where the buffers of a frame end.
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

#include "context.h"
#include "ethertype.h"
#include "icmp.h"
#include "packet.h"
#include "stats.h"

/*
 * Provider bridges use two, a few networks more. But a host removes any number of
 * tags with VID 0 and delivers the packet behind them, so frames with more tags than
 * this are dropped.
 */
#define MAX_VLAN_TAGS 8

_Static_assert(MAX_VLAN_TAGS <= 15, "parse_ethernet() uses four bits of the number");

/* More than routers can push; frames with more are dropped, as those with more tags. */
#define MAX_MPLS_LABELS 16

/* Extension headers are followed up to these limits, whichever comes first. */
#define MAX_EXT_HEADERS 16
#define MAX_EXT_BYTES	1024

/* All headers end within this many bytes, a power of two. */
#define MAX_HEADERS 2048

/* Every transport that is parsed has this much, also in a first fragment (RFC 791). */
#define MIN_TRANSPORT 8

#define LENGTH_UNKNOWN 0xffffffffU

#define IPV4_OFFSET_MASK    0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_OFFSET_MASK    0xfff8

#define IPPROTO_HIP   139
#define IPPROTO_SHIM6 140

volatile const __u8 frags = 0; /* 1: frames may have further buffers; in XDP, the kernel has them */

/* Not a reason, but the answer of a parser in place: load the headers instead. */
#define LOAD_HEADERS REASON_COUNT

struct cursor {
	void *pos;
	void *end;
	__u32 left; /* bytes up to the end, by the IP header */
	__u8 paged; /* the packet continues beyond end, in further buffers */
	__u8 loads; /* headers are loaded from ctx and at, not read at pos */
	__u8 behind; /* the IP headers are behind it: what they carry follows, not a later fragment */
	__u32 at;    /* the offset in the frame */
	__u32 frame; /* its length, or in a tunnel the offset at which the packet around it ends */
	struct context *ctx;
};

/*
 * Returns the next bytes, in place or loaded into the copy; 0 if the frame, or in place
 * its first buffer, ends before. Before multi-buffer XDP there is one buffer, and no
 * helper.
 */
static __always_inline void *peek(const struct cursor *c, void *copy, __u32 size)
{
	void *from;

	if (!c->loads)
		return c->pos + size <= c->end ? c->pos : 0;
	if (c->at + size > c->frame)
		return 0;
	if (frags)
		return load_bytes(c->ctx, c->at, copy, size) ? 0 : copy;
	from = (void *)(long)c->ctx->data + (c->at & (MAX_HEADERS - 1));
	if (from + size > (void *)(long)c->ctx->data_end)
		return 0;
	__builtin_memcpy(copy, from, size);
	return copy;
}

static __always_inline void skip(struct cursor *c, __u32 size)
{
	if (c->loads)
		c->at += size;
	else
		c->pos += size;
}

/*
 * Whether the frame has this many bytes, of a cursor that loads. Without a link header its
 * length may count a header of the tunnel.
 */
static __always_inline int reaches(const struct cursor *c, __u32 bytes)
{
	__u8 last;

	if (bytes > c->frame)
		return 0;
	return !no_link_header || !bytes || !load_bytes(c->ctx, bytes - 1, &last, sizeof(last));
}

static __always_inline int is_past_end(const struct cursor *c)
{
	return c->loads ? !reaches(c, c->at) : c->pos > c->end;
}

static __always_inline enum reason ends_early(const struct cursor *c)
{
	return !c->loads && c->paged ? LOAD_HEADERS : REASON_TRUNCATED;
}

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

static __always_inline int is_ip_or_arp(__be16 proto)
{
	return proto == bpf_htons(ETH_P_IP) || proto == bpf_htons(ETH_P_IPV6) ||
	       proto == bpf_htons(ETH_P_ARP);
}

static __always_inline int is_mpls(__be16 proto)
{
	return proto == bpf_htons(ETH_P_MPLS_UC) || proto == bpf_htons(ETH_P_MPLS_MC);
}

static __always_inline void clear(struct packet *p)
{
	p->family = 0;
	p->ports = 0;
	p->has_ports = 0;
	p->exempt = 0;
	p->loop = 0;
	p->plain = 0;
	p->encapsulated = 0;
}

/*
 * Returns how many tags to skip, up to MAX_VLAN_TAGS; the frame may end within the
 * last. A global function, whose result the verifier does not know: otherwise it
 * would walk the rest of the program once for each number.
 */
__noinline int vlan_tags(struct context *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	void *end = (void *)(long)ctx->data_end;
	int n = 1;

	for (; n < MAX_VLAN_TAGS - tags_beside(ctx) && (void *)(tag + 1) <= end &&
	       is_vlan(tag->proto);
	     n++)
		tag++;
	return n;
}

static __always_inline enum reason parse_ethernet(struct context *ctx, struct cursor *c,
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
	__u32 copy[MIN_TRANSPORT / 4], *words;

	c->behind = 1;
	switch (p->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		break;
	default:
		return REASON_CLEAN;
	}
	if (c->left < MIN_TRANSPORT)
		return REASON_TRUNCATED;
	words = peek(c, copy, sizeof(copy));
	if (!words)
		return ends_early(c);
	if (p->proto != IPPROTO_ICMP && p->proto != IPPROTO_ICMPV6) {
		p->ports = words[0];
		p->has_ports = 1;
	} else if (p->plain && is_failsafe_icmp(p->family, p->proto, *(__u8 *)words)) {
		p->exempt = REASON_FAILSAFE;
	}
	return REASON_CLEAN;
}

static __always_inline enum reason parse_ipv4(struct cursor *c, struct packet *p)
{
	struct iphdr copy, *ip = peek(c, &copy, sizeof(copy));
	__u32 header, total;
	__u8 first;

	if (!ip)
		return ends_early(c);
	first = *(__u8 *)ip; /* bit-fields would be those of the host that compiles this */
	if (first >> 4 != 4)
		return REASON_MALFORMED;

	p->family = 4;
	p->src[0] = ip->saddr;
	p->dst[0] = ip->daddr;
	p->proto = ip->protocol;

	header = (first & 0x0f) * 4;
	total = bpf_ntohs(ip->tot_len);
	if (header < sizeof(*ip) || (total && total < header))
		return REASON_MALFORMED;
	/* 0 in a packet that was aggregated beyond 64 KiB */
	c->left = total ? total - header : LENGTH_UNKNOWN;
	if (ip->frag_off & bpf_htons(IPV4_OFFSET_MASK))
		return REASON_CLEAN;
	p->plain = !(ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS));
	skip(c, header);
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

/* Moves the cursor to the transport header, unless it sets *later: there is none. */
static __always_inline enum reason parse_ipv6_ext(struct cursor *c, struct packet *p, __u8 *later)
{
	struct cursor first = *c;
	__u32 bytes = 0;

	for (int i = 0; i <= MAX_EXT_HEADERS; i++) {
		const struct ipv6_ext_rule *rule = &ipv6_ext_rules[p->proto];
		struct ipv6_ext copy[2], *ext;
		__u32 len;

		if (!rule->follow)
			return REASON_CLEAN;
		if (i == MAX_EXT_HEADERS)
			break;
		if (c->left < 8)
			return REASON_TRUNCATED;
		ext = peek(c, copy, sizeof(copy));
		if (!ext)
			return ends_early(c);

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
		/*
		 * Not `pos += len`: the verifier would add up the bounds of each
		 * len, and refuses pointers beyond 64 KiB.
		 */
		c->left = first.left - bytes;
		c->pos = first.pos;
		c->at = first.at;
		skip(c, bytes);
		if (is_past_end(c))
			return ends_early(c);
	}
	return REASON_UNPARSED;
}

/*
 * Parses this CPU's packet from its extension headers on, in place. at is their offset, left
 * the bytes up to the end by the IP header. A global function, so that the verifier checks
 * it once and not for each way that leads here.
 */
__noinline int parse_extended(struct context *ctx, __u32 at, __u32 left, __u32 paged)
{
	struct cursor c = {.end = (void *)(long)ctx->data_end, .left = left, .paged = paged};
	struct cpu_row *row = this_row();
	enum reason r;
	__u8 later = 0;

	if (!row) /* impossible */
		return REASON_TRUNCATED;
	c.pos = (void *)(long)ctx->data + (at & (MAX_HEADERS - 1));
	r = parse_ipv6_ext(&c, &row->packet, &later);
	return r == REASON_CLEAN && !later ? parse_transport(&c, &row->packet) : r;
}

static __always_inline int is_link_local(const __u32 *addr)
{
	return (addr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

#define ICMPV6_ROUTER_SOLICITATION    133
#define ICMPV6_ROUTER_ADVERTISEMENT   134
#define ICMPV6_NEIGHBOR_SOLICITATION  135
#define ICMPV6_NEIGHBOR_ADVERTISEMENT 136
#define ICMPV6_REDIRECT		      137

/*
 * Whether the ICMPv6 message at the cursor is neighbour discovery as receivers accept
 * it: RFC 4861, sections 6.1, 7.1 and 8.1, and RFC 6980: never in fragments. Hop limit
 * 255 proves that it comes from this link.
 */
static __always_inline int is_nd(const struct cursor *c, const struct packet *p, __u8 hop_limit)
{
	__u8 copy[2], *icmp = peek(c, copy, sizeof(copy));
	__u32 least;

	if (!icmp || icmp[1] || hop_limit != 255 || c->left == LENGTH_UNKNOWN)
		return 0;
	switch (icmp[0]) {
	case ICMPV6_ROUTER_SOLICITATION:
		least = 8;
		break;
	case ICMPV6_ROUTER_ADVERTISEMENT:
		least = 16;
		break;
	case ICMPV6_NEIGHBOR_SOLICITATION:
	case ICMPV6_NEIGHBOR_ADVERTISEMENT:
		least = 24;
		break;
	case ICMPV6_REDIRECT:
		least = 40;
		break;
	default:
		return 0;
	}
	if (icmp[0] == ICMPV6_ROUTER_ADVERTISEMENT || icmp[0] == ICMPV6_REDIRECT)
		return c->left >= least && is_link_local(p->src);
	return c->left >= least;
}

static __always_inline enum reason parse_ipv6(struct cursor *c, struct packet *p)
{
	struct ipv6hdr copy, *ip = peek(c, &copy, sizeof(copy));
	__u8 later = 0, hop_limit;
	__u32 payload;
	enum reason r;

	if (!ip)
		return ends_early(c);
	if (*(__u8 *)ip >> 4 != 6)
		return REASON_MALFORMED;

	p->family = 6;
	__builtin_memcpy(p->src, &ip->saddr, sizeof(p->src));
	__builtin_memcpy(p->dst, &ip->daddr, sizeof(p->dst));
	p->proto = ip->nexthdr;
	p->plain = !ipv6_ext_rules[ip->nexthdr].follow;
	hop_limit = ip->hop_limit;

	payload = bpf_ntohs(ip->payload_len);
	/* 0 in a jumbogram, and in a packet that was aggregated beyond 64 KiB */
	c->left = payload ? payload : LENGTH_UNKNOWN;
	skip(c, sizeof(*ip));

	if (!c->loads && !p->plain)
		return parse_extended(c->ctx, c->pos - (void *)(long)c->ctx->data, c->left,
				      c->paged);
	r = p->plain ? REASON_CLEAN : parse_ipv6_ext(c, p, &later);
	if (r != REASON_CLEAN || later)
		return r;
	r = parse_transport(c, p);
	if (r == REASON_CLEAN && p->proto == IPPROTO_ICMPV6 && p->plain && is_nd(c, p, hop_limit))
		p->exempt = REASON_ND;
	return r;
}

static __always_inline enum reason parse_network(struct cursor *c, struct packet *p, __be16 proto)
{
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		return parse_ipv4(c, p);
	case bpf_htons(ETH_P_IPV6):
		return parse_ipv6(c, p);
	case bpf_htons(ETH_P_ARP):
		return REASON_ARP;
	}
	return c->loads ? REASON_NOT_IP : LOAD_HEADERS; /* loaded ones are one of these */
}

#define ETHERTYPE_OFFSET 12

/*
 * Moves the cursor past the VLAN tags and the EtherType behind them, to which it sets
 * *proto.
 */
static __always_inline enum reason skip_tags(struct cursor *c, __be16 *proto, int most)
{
	for (int i = 0; i <= most; i++) {
		if (!peek(c, proto, sizeof(*proto)))
			return REASON_TRUNCATED;
		if (!is_vlan(*proto))
			break;
		skip(c, sizeof(struct vlan_tag));
	}
	skip(c, sizeof(*proto));
	return is_vlan(*proto) ? REASON_OVERTAGGED : REASON_CLEAN;
}

/*
 * Moves the cursor, to which no Ethernet header leads, past the VLAN tags that *proto says
 * are there, and sets *proto to the EtherType behind them. Linux takes them off as behind
 * an Ethernet header.
 */
static __always_inline enum reason skip_bare_tags(struct cursor *c, __be16 *proto, int most)
{
	if (!is_vlan(*proto))
		return REASON_CLEAN;
	skip(c, sizeof(struct vlan_tag) - sizeof(*proto));
	return skip_tags(c, proto, most - 1);
}

/*
 * Moves the cursor past the label stack and sets *proto to what follows it. Nothing
 * says what that is, so it is guessed by its first four bits, as routers do, and by the
 * length in the header: an Ethernet frame can look like IP.
 */
static __always_inline enum reason skip_labels(struct cursor *c, __be16 *proto)
{
	__u8 label[4], ip[6];

	*proto = 0;
	for (int i = 0;; i++) {
		if (i == MAX_MPLS_LABELS)
			return REASON_OVERTAGGED;
		if (!peek(c, label, sizeof(label)))
			return REASON_TRUNCATED;
		skip(c, sizeof(label));
		if (label[2] & 1)
			break;
	}
	if (!peek(c, ip, sizeof(ip)))
		return REASON_NOT_IP;
	if (ip[0] >> 4 == 4 && reaches(c, c->at + (ip[2] << 8 | ip[3])))
		*proto = bpf_htons(ETH_P_IP);
	else if (ip[0] >> 4 == 6 &&
		 reaches(c, c->at + (ip[4] << 8 | ip[5]) + sizeof(struct ipv6hdr)))
		*proto = bpf_htons(ETH_P_IPV6);
	return *proto ? REASON_CLEAN : REASON_NOT_IP;
}

/*
 * Whether the frame controls the link: a link without it could go down. None of these
 * protocols carries packets.
 */
static __always_inline int is_link_control(const struct cursor *c, __be16 proto)
{
	__u8 llc[6];

	switch (bpf_ntohs(proto)) {
	case 0x22ea: /* MSRP */
	case 0x8808: /* MAC control */
	case 0x8809: /* slow protocols: LACP, OAM */
	case 0x8863: /* PPPoE discovery */
	case 0x888e: /* 802.1X */
	case 0x88cc: /* LLDP */
	case 0x88f5: /* MVRP */
	case 0x88f6: /* MMRP */
	case 0x88f7: /* PTP */
	case 0x8902: /* connectivity fault management */
		return 1;
	}
	if (bpf_ntohs(proto) > ETH_DATA_LEN || !peek(c, llc, sizeof(llc)) || llc[2] != 3)
		return 0;
	switch (llc[0] << 8 | llc[1]) {
	case 0x4242: /* spanning tree */
	case 0xfefe: /* IS-IS */
		return 1;
	case 0xaaaa: /* of Cisco: CDP, VTP, PVST */
		return !llc[3] && !llc[4] && llc[5] == 0x0c;
	}
	return 0;
}

#define PPPOE_HEADER 6
#define PPP_CONTROL  0x8000 /* from here on, protocols that control the session */
#define PPP_MPLS     0x0281
#define PPP_MPLS_MC  0x0283
#ifndef PPP_IP
#define PPP_IP	 0x0021
#define PPP_IPV6 0x0057
#endif

/*
 * Moves the cursor past the headers of PPPoE and PPP and sets *proto to the EtherType
 * of the payload, or 0. PPP may compress its protocol number to one byte, which is
 * odd then; PPPoE forbids that, and receivers accept it.
 */
static __always_inline enum reason skip_pppoe(struct cursor *c, __be16 *proto)
{
	__u8 ppp[2];
	__u32 number;

	*proto = 0;
	skip(c, PPPOE_HEADER);
	if (!peek(c, ppp, sizeof(ppp)))
		return REASON_TRUNCATED;
	number = ppp[0] & 1 ? ppp[0] : ppp[0] << 8 | ppp[1];
	skip(c, ppp[0] & 1 ? 1 : 2);
	switch (number) {
	case PPP_IP:
		*proto = bpf_htons(ETH_P_IP);
		break;
	case PPP_IPV6:
		*proto = bpf_htons(ETH_P_IPV6);
		break;
	case PPP_MPLS:
	case PPP_MPLS_MC:
		*proto = bpf_htons(ETH_P_MPLS_UC);
		break;
	}
	return number < PPP_CONTROL ? REASON_CLEAN : REASON_LINK;
}

/* The length of a packet's buffers. */
static __always_inline __u32 end_of(struct context *ctx, const struct packet *p)
{
	return p->len - bytes_beside(ctx);
}

/*
 * Follows the headers before IP in this CPU's packet, and counts it if none follows.
 * Returns the offset of the next header << 16 | its EtherType, or a negative reason. A
 * global function, so that the verifier checks it once.
 */
__noinline int find_network(struct context *ctx)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = ETHERTYPE_OFFSET};
	struct cpu_row *row = this_row();
	enum reason r = REASON_CLEAN;
	__be16 proto = 0, type;

	if (!row) /* impossible */
		return -REASON_NOT_IP;
	c.frame = end_of(ctx, &row->packet);
	if (no_link_header) {
		c.at = 0;
		proto = protocol_of(ctx);
		r = skip_bare_tags(&c, &proto, MAX_VLAN_TAGS - tags_beside(ctx));
	} else {
		r = skip_tags(&c, &proto, MAX_VLAN_TAGS - tags_beside(ctx));
	}
	if (r != REASON_CLEAN)
		return -r;
	if (!no_link_header && is_link_control(&c, proto))
		return -REASON_LINK;
	type = proto;
	if (proto == bpf_htons(ETH_P_PPP_SES) || is_mpls(proto))
		row->packet.encapsulated = IN_LINK;
	if (proto == bpf_htons(ETH_P_PPP_SES))
		r = skip_pppoe(&c, &proto);
	if (r == REASON_CLEAN && is_mpls(proto))
		r = skip_labels(&c, &proto);
	if (r == REASON_CLEAN && !is_ip_or_arp(proto))
		r = REASON_NOT_IP;
	if (r == REASON_NOT_IP)
		count_ethertype(bpf_ntohs(type), row->packet.len);
	if (r != REASON_CLEAN)
		return -r;
	return c.at << 16 | bpf_ntohs(proto);
}

/* The result of parse_at(): the reason, and offset and end of the IP headers' payload. */
#define PARSED_REASON(parsed) ((enum reason)((parsed) & 0xff))
#define PARSED_OFFSET(parsed) ((__u32)(parsed) >> 8)
#define PARSED_END(parsed)    ((__u32)((parsed) >> 32))

_Static_assert(REASON_COUNT <= 0xff, "a byte holds every reason");

/*
 * Parses this CPU's packet from an IP header on, by loading its headers. found is its
 * offset << 16 | its EtherType, and the frame, or the packet around it, ends at `end`. The
 * offset of the headers' payload is 0 where they are bad or it is a later fragment.
 */
__noinline __u64 parse_at(struct context *ctx, __u32 found, __u32 end)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = found >> 16, .frame = end};
	struct cpu_row *row = this_row();
	enum reason r;

	if (!row) /* impossible */
		return REASON_NOT_IP;
	r = parse_network(&c, &row->packet, bpf_htons(found));
	if (r != REASON_CLEAN || !c.behind)
		return r;
	if (c.left < end && c.at + c.left < end)
		end = c.at + c.left;
	return (__u64)end << 32 | c.at << 8;
}

/* Parses this CPU's packet by loading its headers. */
__noinline int parse_loaded(struct context *ctx)
{
	struct cpu_row *row = this_row();
	int found;

	if (!row) /* impossible */
		return REASON_NOT_IP;
	clear(&row->packet);
	found = find_network(ctx);
	if (found < 0)
		return -found;
	row->packet.network = found >> 16;
	return PARSED_REASON(parse_at(ctx, found, end_of(ctx, &row->packet)));
}

static __always_inline enum reason parse(struct context *ctx, struct cursor *c, struct packet *p)
{
	void *start = c->pos;
	__be16 proto;
	enum reason r;

	if (no_link_header)
		return parse_loaded(ctx);
	clear(p);
	r = parse_ethernet(ctx, c, &proto);
	if (r == REASON_CLEAN) {
		p->network = c->pos - start;
		r = parse_network(c, p, proto);
	}
	return r == LOAD_HEADERS ? parse_loaded(ctx) : r;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Icarus: packets carry a small Bloom filter through a domain, into which each node
 * ORs its mask. A packet whose filter does not change has been here before (Whitaker
 * and Wetherall, "Forwarding without loops in Icarus", 2002). The twin of package
 * filter/icarus, which documents the wire format.
 *
 * XDP sees packets only as they come in, so the role of the interface decides: a
 * packet received at an edge gets a filter if it is to be forwarded into the domain;
 * one received elsewhere visits the node, and loses its filter if it is to leave at
 * an edge. The routing table says where it is to go. If that turns out wrong, an
 * option that every host skips travels on, or a packet travels without.
 *
 * Clean traffic inside the domain costs a check and writing a few words. The tag is
 * verified only where a filter did not change.
 */
#ifndef WEIR_LOOP_H
#define WEIR_LOOP_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "array.h"
#include "invariant.h"
#include "packet.h"
#include "siphash.h"
#include "stats.h"

/* What a node finds in, or does to, a packet's filter. The Go names are in filter/icarus. */
enum loop_outcome {
	LOOP_UNTOUCHED,	      /* no filter, and none expected: not counted */
	LOOP_INSERTED,	      /* at an edge, with the node's own mask */
	LOOP_VISITED,	      /* the node's mask was new to the filter */
	LOOP_SUSPECTED,	      /* it did not change, at too few nodes in a row for a verdict */
	LOOP_LOOPED,	      /* it did not change, at as many nodes in a row as confirm a loop */
	LOOP_REMOVED,	      /* at an edge */
	LOOP_TOO_LARGE,	      /* not inserted: larger than the MTU or a length field allows */
	LOOP_NO_ROOM,	      /* not inserted: the frame's buffer has no room */
	LOOP_FRAGMENT,	      /* not inserted, or not verified: a fragment */
	LOOP_OPTIONS_PRESENT, /* not inserted: IPv4 options or a hop-by-hop header */
	LOOP_FORGED,	      /* the filter did not change, but the tag is wrong: left alone */
	LOOP_FOREIGN,	      /* of another domain or size: left alone */
	LOOP_OUTCOME_COUNT,
};

#define LOOP_WORDS 4 /* of the largest filter: 256 bits */

/* Constants of a generation, set before loading. */
struct loop_config {
	__u64 mask[LOOP_WORDS]; /* in the byte order of a packet */
	__u64 key[2];		/* the domain's secret */
	__u32 words;		/* of 8 bytes in a filter: 1, 2 or 4; 0: no loop detection */
	__u8 domain;
	__u8 confirm; /* how many nodes in a row must find a filter unchanged */
	__u8 edges;   /* 1: some interfaces are edges */
	__u8 pad;
};

volatile const struct loop_config loop_node = {};

/* Of the interface; 1: an edge, where packets come from outside the domain. */
volatile const __u8 loop_edge = 0;

#define MAX_LOOP_OUTCOMES 16

/* Packets by outcome, a row for each CPU, which writes only its own. */
struct loop_row {
	__u64 packets[MAX_LOOP_OUTCOMES];
};

_Static_assert(LOOP_OUTCOME_COUNT <= MAX_LOOP_OUTCOMES, "a row holds every outcome");
_Static_assert(sizeof(struct loop_row) == 128, "rows do not share cache lines");

/* max_entries: the number of possible CPUs */
KEPT_ARRAY(loop_stats, struct loop_row);

/*
 * The indexes of the interfaces that are edges, and of VLAN devices above them. Not
 * looked up inside a domain, and elsewhere only after the routing table, so that a
 * hash is fast enough.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} loop_edges SEC(".maps") KEPT;

#define LOOP_TYPE_V4 0x9e
#define LOOP_TYPE_V6 0x3e

#define LOOP_HEADER_V4 20
#define LOOP_HEADER_V6 40
#define LOOP_PAD_V6    8 /* next header, length, PadN of 6 bytes */

#define MAX_LENGTH 0xffff

#define FRAGMENTED bpf_htons(0x3fff) /* of IPv4: more fragments, or an offset */

struct loop_option {
	__u8 type;
	__u8 len;
	__u8 count; /* how many nodes in a row found the filter unchanged */
	__u8 domain;
	__u32 tag;
	__u64 filter[];
};

static __always_inline __u32 option_size(void)
{
	return sizeof(struct loop_option) + 8 * loop_node.words;
}

static __always_inline struct loop_row *this_loop(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&loop_stats, &cpu);
}

/* The IP header of this CPU's packet, not yet checked against the end. */
static __always_inline void *network_of(struct xdp_md *ctx, const struct cpu_row *row)
{
	return (void *)(long)ctx->data + row->packet.network;
}

static __always_inline void count_loop(enum loop_outcome outcome)
{
	struct loop_row *row = this_loop();

	if (row && outcome != LOOP_UNTOUCHED)
		row->packets[outcome % MAX_LOOP_OUTCOMES] += 1; /* for the verifier */
}

/*
 * Returns the domain's option, if it is the only one, where an edge puts it, and
 * entirely in the first buffer. Sets *foreign if there is another of its type.
 */
static __always_inline struct loop_option *find_option(void *ip, void *end, int v6, int *foreign)
{
	__u32 size = option_size(), header = LOOP_HEADER_V4 + size;
	struct loop_option *o;
	__u8 *byte = ip;
	int fits;

	if (v6) {
		__u32 *pad = ip + LOOP_HEADER_V6;

		o = ip + LOOP_HEADER_V6 + LOOP_PAD_V6;
		if ((void *)(o + 1) > end)
			return 0;
		if (byte[6] != IPPROTO_HOPOPTS || byte[42] != 1 || byte[43] != 4 || pad[1] ||
		    o->type != LOOP_TYPE_V6)
			return 0;
		fits = byte[41] == loop_node.words + 1 && o->len == size - 2 &&
		       bpf_ntohs(*(__be16 *)(ip + 4)) >= LOOP_PAD_V6 + size;
	} else {
		o = ip + LOOP_HEADER_V4;
		if ((void *)(o + 1) > end)
			return 0;
		if ((byte[0] & 0xf) < (LOOP_HEADER_V4 + sizeof(*o)) / 4 || o->type != LOOP_TYPE_V4)
			return 0;
		fits = (byte[0] & 0xf) * 4 == header && o->len == size &&
		       bpf_ntohs(*(__be16 *)(ip + 2)) >= header;
	}
	if (!fits || o->domain != loop_node.domain || (void *)o + size > end) {
		*foreign = 1;
		return 0;
	}
	return o;
}

/*
 * Returns the tag of this CPU's packet, in the byte order of an option, or a negative
 * number where its invariant part is incomplete.
 */
__noinline long loop_tag(struct xdp_md *ctx)
{
	struct cpu_row *row = this_row();
	struct cursor c = {.end = (void *)(long)ctx->data_end};
	struct invariant inv = {};
	int len, words;

	if (!row || !loop_node.words)
		return -1;
	c.pos = network_of(ctx, row);
	len = invariant_of(&c, &inv);
	if (!len)
		return -1;
	words = len == INVARIANT_V4 ? 4 : 8;
	/* The domain is the last byte of the message, in the free half of the last word. */
	inv.w[words - 1] |= (__u64)loop_node.domain << 32 | (__u64)(len + 1) << 56;
	return le32(siphash(loop_node.key, inv.w, words));
}

/* Whether this CPU's packet is a fragment of IPv4. */
static __always_inline int fragment_v4(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end, *ip;
	struct cpu_row *row = this_row();

	if (!row || row->packet.family != 4)
		return 0;
	ip = network_of(ctx, row);
	return ip + LOOP_HEADER_V4 <= end && (*(__be16 *)(ip + 6) & FRAGMENTED);
}

/*
 * Returns the outcome for a packet whose filter did not change. A packet that was
 * fragmented inside the domain has a tag that matches none of its fragments, so these
 * cannot be verified.
 */
__noinline int judge_loop(struct xdp_md *ctx, __u32 tag, __u32 count)
{
	enum loop_outcome outcome = LOOP_FORGED;

	if (loop_tag(ctx) == tag)
		outcome = count + 1 >= loop_node.confirm ? LOOP_LOOPED : LOOP_SUSPECTED;
	else if (fragment_v4(ctx))
		outcome = LOOP_FRAGMENT;
	count_loop(outcome);
	return outcome;
}

/* Sets p->loop by the packet's filter, which it does not change. */
static __always_inline void check_loop(struct xdp_md *ctx, struct packet *p)
{
	void *ip = (void *)(long)ctx->data + p->network, *end = (void *)(long)ctx->data_end;
	int foreign = 0;
	struct loop_option *o;
	__u64 fresh = 0;

	if (p->encapsulated) /* not forwarded by its IP header */
		return;
	o = find_option(ip, end, p->family == 6, &foreign);
	if (!o) {
		if (foreign)
			count_loop(LOOP_FOREIGN);
		return;
	}
	for (int i = 0; i < LOOP_WORDS && i < loop_node.words; i++)
		fresh |= loop_node.mask[i] & ~o->filter[i];
	p->loop = fresh ? LOOP_VISITED : judge_loop(ctx, o->tag, o->count);
}

/* Whether check_loop() has found a filter of this domain. */
static __always_inline int carries_filter(const struct packet *p)
{
	return p->loop >= LOOP_VISITED && p->loop <= LOOP_LOOPED;
}

/* A ones' complement sum, 32 bits at a time. */
static __always_inline __u64 sum64(__u64 sum, __u64 word)
{
	return sum + (__u32)word + (word >> 32);
}

/* Updates an IPv4 header's checksum by such a sum (RFC 1624, equation 3). */
static __always_inline void fix_checksum(void *ip, __u64 sum)
{
	__u16 *check = ip + 10;

	sum += (__u16) ~*check;
	sum = (__u32)sum + (sum >> 32);
	sum = (__u32)sum + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*check = ~sum;
}

/*
 * ORs the node's mask into the packet's filter, and counts the nodes in a row that
 * have found it there already.
 */
static __always_inline void visit_loop(struct xdp_md *ctx, const struct packet *p)
{
	void *ip = (void *)(long)ctx->data + p->network, *end = (void *)(long)ctx->data_end;
	__u32 at = p->family == 6 ? LOOP_HEADER_V6 + LOOP_PAD_V6 : LOOP_HEADER_V4;
	struct loop_option *o = ip + at;
	__u64 sum = 0;
	__u8 count;

	if ((void *)o + option_size() > end) /* impossible: check_loop() has read it */
		return;
	for (int i = 0; i < LOOP_WORDS && i < loop_node.words; i++) {
		__u64 fresh = loop_node.mask[i] & ~o->filter[i];

		/* The bits were 0, so that ORing them adds them to the word. */
		o->filter[i] |= fresh;
		sum = sum64(sum, fresh);
	}
	count = p->loop == LOOP_VISITED ? 0 : o->count + (o->count < 255);
	if (count != o->count) {
		__u16 *word = (__u16 *)&o->count;

		sum += (__u16) ~*word;
		o->count = count;
		sum += *word;
	}
	if (p->family == 4 && sum)
		fix_checksum(ip, sum);
	if (p->loop == LOOP_VISITED)
		count_loop(LOOP_VISITED);
}

enum loop_way {
	WAY_UNKNOWN, /* or no route */
	WAY_INSIDE,
	WAY_OUT,   /* at an edge */
	WAY_LOCAL, /* to this host */
	WAY_TOO_LARGE,
};

/*
 * Returns where this CPU's packet is to go, given that it has len bytes from the IP
 * header on; 0: ignoring the MTU.
 */
__noinline int loop_way(struct xdp_md *ctx, __u32 len)
{
	struct bpf_fib_lookup to = {};
	struct cpu_row *row = this_row();
	int r;

	if (!row || !loop_node.edges)
		return WAY_UNKNOWN;
	to.family = row->packet.family == 6 ? 10 : 2; /* AF_INET6, AF_INET */
	to.l4_protocol = row->packet.proto;
	to.tot_len = len;
	to.ifindex = ctx->ingress_ifindex;
	if (row->packet.has_ports)
		__builtin_memcpy(&to.sport, &row->packet.ports, 4); /* and dport */
	__builtin_memcpy(to.ipv6_src, row->packet.src, sizeof(to.ipv6_src));
	__builtin_memcpy(to.ipv6_dst, row->packet.dst, sizeof(to.ipv6_dst));
	r = bpf_fib_lookup(ctx, &to, sizeof(to), 0);
	if (r == BPF_FIB_LKUP_RET_NOT_FWDED)
		return WAY_LOCAL;
	if (r == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return WAY_TOO_LARGE;
	/* Before 5.11, the index is still that of the ingress interface. */
	if (r != BPF_FIB_LKUP_RET_SUCCESS &&
	    (r != BPF_FIB_LKUP_RET_NO_NEIGH || to.ifindex == ctx->ingress_ifindex))
		return WAY_UNKNOWN;
	return bpf_map_lookup_elem(&loop_edges, &to.ifindex) ? WAY_OUT : WAY_INSIDE;
}

/*
 * Moves the headers, VLAN tags included, up to the end of the fixed IP header, by this
 * many bytes towards the frame's start or away from it. They are two bytes and this
 * many words long. Returns 0 where the frame ends before.
 */
#define MOST_MOVED ((14 + 4 * MAX_VLAN_TAGS + LOOP_HEADER_V6 - 2) / 4)

/* Hides from the compiler that one bound implies the other, which the verifier does not know. */
static __always_inline void *apart(void *pos, __u32 by)
{
	pos += by & 63;
	asm volatile("" : "+r"(pos));
	return pos;
}

__noinline int lower_headers(struct xdp_md *ctx, __u32 words, __u32 by)
{
	void *to = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *from = apart(to, by);

	if (from + 2 > end || to + 2 > end)
		return 0;
	*(__u16 *)to = *(__u16 *)from;
	for (int i = 0; i < MOST_MOVED && i < words; i++) {
		__u32 *a = from + 2 + 4 * i, *b = to + 2 + 4 * i;

		if ((void *)(a + 1) > end || (void *)(b + 1) > end)
			return 0;
		*b = *a;
	}
	return 1;
}

__noinline int raise_headers(struct xdp_md *ctx, __u32 words, __u32 by)
{
	void *from = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *to = apart(from, by);

	/* Unrolled: for the verifier of 7.2, an offset that falls in each iteration is unbounded. */
#pragma unroll
	for (int i = MOST_MOVED - 1; i >= 0; i--) {
		__u32 *a = from + 2 + 4 * i, *b = to + 2 + 4 * i;

		if (i >= words)
			continue;
		if ((void *)(a + 1) > end || (void *)(b + 1) > end)
			return 0;
		*b = *a;
	}
	if (from + 2 > end || to + 2 > end)
		return 0;
	*(__u16 *)to = *(__u16 *)from;
	return 1;
}

/* The number of words in the headers, behind their first two bytes. */
static __always_inline __u32 header_words(const struct packet *p)
{
	return (p->network - 2 + (p->family == 6 ? LOOP_HEADER_V6 : LOOP_HEADER_V4)) / 4;
}

/* The number of bytes that a filter adds to the packet. */
static __always_inline __u32 overhead_of(const struct packet *p)
{
	return option_size() + (p->family == 6 ? LOOP_PAD_V6 : 0);
}

/*
 * Returns LOOP_INSERTED, or the reason why the packet gets no filter, apart from its
 * length, which goes to *len. Broadcast, and multicast unless it is forwarded here, get
 * none: the routing table would send them along a default route.
 */
static __always_inline enum loop_outcome obstacle(void *ip, void *end, int v6, int forwarded,
						  __u32 *len)
{
	__u8 *byte = ip;

	if (v6) {
		if (ip + LOOP_HEADER_V6 > end || (byte[24] == 0xff && !forwarded))
			return LOOP_UNTOUCHED;
		*len = bpf_ntohs(*(__be16 *)(ip + 4));
		if (byte[6] == IPPROTO_HOPOPTS)
			return LOOP_OPTIONS_PRESENT;
		if (byte[6] == IPPROTO_FRAGMENT)
			return LOOP_FRAGMENT;
		return *len ? LOOP_INSERTED : LOOP_UNTOUCHED; /* 0: aggregated, perhaps */
	}
	if (ip + LOOP_HEADER_V4 > end || (byte[16] >= 224 && !forwarded))
		return LOOP_UNTOUCHED;
	*len = bpf_ntohs(*(__be16 *)(ip + 2));
	if ((byte[0] & 0xf) > LOOP_HEADER_V4 / 4)
		return LOOP_OPTIONS_PRESENT;
	if (*(__be16 *)(ip + 6) & FRAGMENTED)
		return LOOP_FRAGMENT;
	return (byte[0] & 0xf) == LOOP_HEADER_V4 / 4 && *len >= LOOP_HEADER_V4 ? LOOP_INSERTED
									       : LOOP_UNTOUCHED;
}

static __always_inline void write_option(struct loop_option *o, __u8 type, __u8 len, __u32 tag)
{
	o->type = type;
	o->len = len;
	o->count = 0;
	o->domain = loop_node.domain;
	o->tag = tag;
	for (int i = 0; i < LOOP_WORDS && i < loop_node.words; i++)
		o->filter[i] = loop_node.mask[i];
}

/* The ones' complement sum of an option, or of its complement. */
static __always_inline __u64 sum_option(const struct loop_option *o, __u64 flip)
{
	const __u64 *words = (void *)o;
	__u64 sum = 0;

	for (int i = 0; i < 1 + LOOP_WORDS && i < 1 + loop_node.words; i++)
		sum = sum64(sum, words[i] ^ flip);
	return sum;
}

/* Writes the option where room was made for it. */
__noinline int fill_option(struct xdp_md *ctx, __u32 len, __u32 tag)
{
	void *end = (void *)(long)ctx->data_end, *ip;
	struct cpu_row *row = this_row();
	__u32 size = option_size(), *first;
	struct loop_option *o;
	__u64 sum;

	if (!row)
		return 0;
	first = ip = network_of(ctx, row);
	if (row->packet.family == 6) {
		__u8 *hop = ip + LOOP_HEADER_V6;

		o = ip + LOOP_HEADER_V6 + LOOP_PAD_V6;
		if ((void *)o + size > end)
			return 0;
		*(__be16 *)(ip + 4) = bpf_htons(len);
		hop[0] = ((__u8 *)ip)[6];
		((__u8 *)ip)[6] = IPPROTO_HOPOPTS;
		hop[1] = loop_node.words + 1;
		hop[2] = 1; /* PadN */
		hop[3] = 4;
		*(__u32 *)(hop + 4) = 0;
		write_option(o, LOOP_TYPE_V6, size - 2, tag);
		return 1;
	}
	o = ip + LOOP_HEADER_V4;
	if ((void *)o + size > end)
		return 0;
	sum = (__u32) ~*first;
	*(__u8 *)ip = 0x40 | (LOOP_HEADER_V4 + size) / 4;
	*(__be16 *)(ip + 2) = bpf_htons(len);
	write_option(o, LOOP_TYPE_V4, size, tag);
	fix_checksum(ip, sum + *first + sum_option(o, 0));
	return 1;
}

/*
 * Inserts a filter into this CPU's packet, which becomes len bytes long by its header,
 * `by` more than it was.
 */
static __always_inline enum loop_outcome
insert_filter(struct xdp_md *ctx, const struct cpu_row *row, __u32 len, __u32 by)
{
	long tag;

	if (len > MAX_LENGTH)
		return LOOP_TOO_LARGE;
	tag = loop_tag(ctx);
	if (tag < 0)
		return LOOP_UNTOUCHED;
	if (bpf_xdp_adjust_head(ctx, -(int)by))
		return LOOP_NO_ROOM;
	/* Neither can fail: the bytes that they touch have just been read. */
	lower_headers(ctx, header_words(&row->packet), by);
	fill_option(ctx, len, tag);
	return LOOP_INSERTED;
}

/* For a packet that was received at an edge, and passes. */
__noinline int enter_domain(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct cpu_row *row = this_row();
	enum loop_outcome outcome;
	__u32 len = 0, by, whole;
	int way;

	if (!row || !loop_node.words)
		return LOOP_UNTOUCHED;
	outcome = obstacle(network_of(ctx, row), end, row->packet.family == 6, 0, &len);
	if (outcome == LOOP_UNTOUCHED)
		return outcome;
	by = overhead_of(&row->packet);
	len += by;
	whole = len + (row->packet.family == 6 ? LOOP_HEADER_V6 : 0);
	if (whole > MAX_LENGTH)
		whole = MAX_LENGTH;
	way = loop_way(ctx, outcome == LOOP_INSERTED ? whole : 0);
	if (way == WAY_TOO_LARGE)
		return LOOP_TOO_LARGE;
	if (way != WAY_INSIDE)
		return LOOP_UNTOUCHED;
	if (outcome != LOOP_INSERTED)
		return outcome;
	return insert_filter(ctx, row, len, by);
}

/*
 * Removes the option o from the packet whose IP header is at ip. The headers are so many
 * words long, and the option takes `by` bytes.
 */
static __always_inline void remove_option(struct xdp_md *ctx, void *ip, const struct loop_option *o,
					  int v6, __u32 words, __u32 by)
{
	void *end = (void *)(long)ctx->data_end;
	__u32 *first = ip;

	if (v6) {
		__be16 *len = ip + 4;

		/* Checked before, which the verifier does not know. */
		if (ip + LOOP_HEADER_V6 + LOOP_PAD_V6 > end)
			return;
		*len = bpf_htons(bpf_ntohs(*len) - by);
		((__u8 *)ip)[6] = ((__u8 *)ip)[LOOP_HEADER_V6];
	} else {
		__be16 *len = ip + 2;
		__u64 sum = (__u32) ~*first;

		*(__u8 *)ip = 0x40 | LOOP_HEADER_V4 / 4;
		*len = bpf_htons(bpf_ntohs(*len) - by);
		fix_checksum(ip, sum + *first + sum_option(o, ~0ULL));
	}
	/* Neither can fail: all bytes that are moved or removed have just been read. */
	raise_headers(ctx, words, by);
	bpf_xdp_adjust_head(ctx, by);
}

/* For a packet that was received inside the domain, and passes. */
__noinline int leave_domain(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end, *ip;
	struct cpu_row *row = this_row();
	int v6, foreign = 0, way;
	struct loop_option *o;

	if (!row || !loop_node.words)
		return LOOP_UNTOUCHED;
	v6 = row->packet.family == 6;
	ip = network_of(ctx, row);
	o = find_option(ip, end, v6, &foreign);
	if (!o)
		return LOOP_UNTOUCHED;
	way = loop_way(ctx, 0);
	if (way != WAY_OUT && way != WAY_LOCAL)
		return LOOP_UNTOUCHED;
	remove_option(ctx, ip, o, v6, header_words(&row->packet), overhead_of(&row->packet));
	return LOOP_REMOVED;
}

/*
 * Inserts, updates or removes the filter of this CPU's packet, which passes, on a
 * node with edges. From packets that pass before any list it is removed, but not
 * inserted into them.
 */
__noinline int cross_edge(struct xdp_md *ctx)
{
	enum loop_outcome outcome = LOOP_UNTOUCHED;
	struct cpu_row *row = this_row();
	int safe, found;

	if (!row || row->packet.encapsulated || row->packet.reason == REASON_ND ||
	    row->packet.reason == REASON_DHCP)
		return 0;
	safe = row->packet.reason == REASON_FAILSAFE;
	found = carries_filter(&row->packet);
	if (loop_edge) {
		if (!safe)
			outcome = enter_domain(ctx);
	} else if (safe || found || row->packet.loop == LOOP_FRAGMENT) {
		outcome = leave_domain(ctx);
	}
	count_loop(outcome);
	if (found && outcome == LOOP_UNTOUCHED)
		visit_loop(ctx, &row->packet);
	return 0;
}

/* Inserts, updates or removes the filter of a packet that passes. */
static __always_inline void carry_filter(struct xdp_md *ctx, const struct packet *p)
{
	if (loop_edge || loop_node.edges)
		cross_edge(ctx);
	else if (carries_filter(p))
		visit_loop(ctx, p);
}

#endif

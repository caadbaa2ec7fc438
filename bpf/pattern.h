/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Patterns: packets that commands drop, or hold to a rate, by fields of their headers which keys
 * of lists do not have. There are few, tried in order; each ends by itself. One on trial only
 * counts. The twin is Patterns in filter/flood.
 *
 * A packet's fields are read only where a pattern has its addresses, protocol and ports: of most,
 * where they lie in the frame; of others, as samples have them.
 */
#ifndef WEIR_PATTERN_H
#define WEIR_PATTERN_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "context.h"
#include "packet.h"
#include "parse.h"
#include "penalty.h"
#include "sampler.h"
#include "stats.h"

#define MAX_PATTERNS 16

/* flood.Field */
enum pattern_field {
	PATTERN_PROTOCOL,
	PATTERN_FRAGMENT,
	PATTERN_FLAGS,
	PATTERN_LENGTH,
	PATTERN_SRC_PORT,
	PATTERN_DST_PORT,
	PATTERN_TTL,
	PATTERN_ID,
	PATTERN_HEADER_LENGTH,
	PATTERN_WINDOW,
	PATTERN_PAYLOAD,
	PATTERN_STRANGER,
	PATTERN_FIELDS,
};

#define FIELD_SLOTS 16 /* a power of two, PATTERN_FIELDS at least: so an index is within bounds */

/* Not a field: the low bound has the bits of the flags that are compared, and those above them. */
#define PATTERN_COMPARED_FLAGS (FIELD_SLOTS - 1)

#define PATTERN_ABSENT 0xffffffff /* within no bounds but those that leave a field open */

struct field_bounds {
	__u32 low;
	__u32 width; /* the highest value, less low */
};

/* Which packets of a pattern share its rate: flood.Sharing */
enum pattern_sharing {
	SHARED_BY_ALL,
	SHARED_BY_SOURCE, /* or its network */
	SHARED_BY_DESTINATION,
	SHARED_BY_FLOW,
};

/* What a pattern does: see struct pattern. */
#define PATTERN_OFF	 0
#define PATTERN_TRIAL	 1
#define PATTERN_ENFORCED 2

struct pattern {
	__u32 src[4];
	__u32 src_mask[4];
	__u32 dst[4];
	__u32 dst_mask[4];
	struct field_bounds fields[FIELD_SLOTS];
	struct penalty rate; /* cost PENALTY_BLOCK: all are dropped */
	__u32 state;	     /* PATTERN_OFF, PATTERN_TRIAL, PATTERN_ENFORCED: written last */
	__u8 family;	     /* 0: of both */
	__u8 by_bytes;
	__u8 asks;			/* fields with bounds, beside the protocol */
	__u8 asked[PATTERN_FIELDS - 1]; /* which these are */
	__u8 sharing;			/* enum pattern_sharing */
	__u8 serial;			/* differs from that of the row's former pattern */
	__u32 source_mask[3]; /* of SHARED_BY_SOURCE: of IPv4, and the first words of IPv6 */
};

_Static_assert(sizeof(struct pattern) == 256, "patterns do not share cache lines");

struct pattern_counters {
	struct counter matched;
	struct counter dropped; /* neither allowed nor in monitor mode, nor by a list */
	__u64 conversing;	/* packets of matched: see conversing() */
	__u64 unknown;		/* of which it is not known whether they do */
};

/* Packets that share the rate of a pattern. What is not compared is 0. */
struct pattern_sharers {
	__u32 src[4];
	__u32 dst[4];
	__u32 ports;
	__u8 row;
	__u8 serial;
	__u8 family;
	__u8 proto;
};

/* When their buckets are full. Whose bucket was evicted begins with a full one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct pattern_sharers);
	__type(value, __u64);
} pattern_buckets SEC(".maps");

struct pattern_cpu {
	struct sampler_record record; /* of the packet, if it was not read in place */
	__u32 values[FIELD_SLOTS];
	__u64 now;     /* the kernel's clock at the last tick that a packet has seen */
	__u64 jiffies; /* at that tick */
	__u32 conversing;
	__u32 last; /* the number of the pattern that has dropped a packet, from 1 */
	__u32 pad[10];
	struct pattern_counters of[MAX_PATTERNS];
};

_Static_assert(sizeof(struct pattern_cpu) % 64 == 0, "CPUs do not share cache lines");

struct pattern_table {
	struct pattern rows[MAX_PATTERNS];
	__u32 used; /* rows up to the last pattern */
	__u32 pad[15];
};

/* max_entries: 1, and the number of possible CPUs */
ARRAY(patterns, struct pattern_table);
ARRAY(pattern_cpus, struct pattern_cpu);

/* Whether there are patterns, and ones with a rate that not all packets share. */
volatile const __u8 patterning = 0;
volatile const __u8 sharing_rates = 0;

static __always_inline struct pattern_cpu *patterns_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&pattern_cpus, &cpu);
}

/* Counts this CPU's packet, which a pattern drops, and returns the pattern's number. */
static __always_inline int count_pattern(__u32 len)
{
	struct pattern_cpu *mine = patterns_here();

	if (!mine) /* impossible */
		return -1;
	count(&mine->of[(mine->last - 1) % MAX_PATTERNS].dropped, len);
	return mine->last;
}

/* Whether a protocol has ports to patterns, or a type and a code in their place. */
static __always_inline int has_port_fields(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP ||
	       proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

static __always_inline void set_conversing(struct pattern_cpu *mine, __u32 conversing)
{
	mine->conversing = conversing;
	mine->values[PATTERN_STRANGER] = conversing == STRANGER;
}

/* Reads the fields of this CPU's packet as a sample has them. A global function, like those in lists.h. */
__noinline int read_fields(struct context *ctx)
{
	struct pattern_cpu *mine = patterns_here();
	struct cpu_row *row = this_row();
	struct sampler_record *r;
	__u32 tcp, ports, *values;
	struct packet *p;

	if (!row || !mine) /* impossible */
		return 0;
	p = &row->packet;
	r = &mine->record;
	values = mine->values;
	*r = (struct sampler_record){};
	record_fields(ctx, p->network << 16 | (p->family == 4 ? ETH_P_IP : ETH_P_IPV6), p, r);
	tcp = r->proto == IPPROTO_TCP && r->header_length;
	ports = r->fragment != FRAGMENT_LATER && has_port_fields(r->proto);
	values[PATTERN_FRAGMENT] = r->fragment;
	values[PATTERN_FLAGS] = tcp ? r->flags : PATTERN_ABSENT;
	values[PATTERN_LENGTH] = r->length;
	values[PATTERN_SRC_PORT] = ports ? r->src_port : PATTERN_ABSENT;
	values[PATTERN_DST_PORT] = ports ? r->dst_port : PATTERN_ABSENT;
	values[PATTERN_TTL] = r->ttl;
	values[PATTERN_ID] = p->family == 4 ? r->id : PATTERN_ABSENT;
	values[PATTERN_HEADER_LENGTH] = tcp ? r->header_length : PATTERN_ABSENT;
	values[PATTERN_WINDOW] = tcp ? r->window : PATTERN_ABSENT;
	values[PATTERN_PAYLOAD] = (__u32)r->payload[0] << 24 | r->payload[1] << 16 |
				  r->payload[2] << 8 | r->payload[3];
	set_conversing(mine, r->conversing);
	return 0;
}

/*
 * Reads the fields of this CPU's packet where they lie, but for whether it is of a stranger: of a
 * whole one without options of IP or extension headers, whose headers are within the first buffer.
 * Returns whether it is one.
 */
static __always_inline int read_in_place(struct context *ctx, const struct packet *p, __u32 *values)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const void *ip = data + p->network, *next;
	__u32 length, ports = 0;

	if (no_link_header || !p->plain || p->reason != REASON_CLEAN)
		return 0;
	if (p->family == 4) {
		next = ip + sizeof(struct iphdr);
		if (next + MIN_TRANSPORT > end || *(__u8 *)ip != 0x45)
			return 0;
		length = bpf_ntohs(*(__be16 *)(ip + 2));
		values[PATTERN_ID] = bpf_ntohs(*(__be16 *)(ip + 4));
		values[PATTERN_TTL] = *(__u8 *)(ip + 8);
	} else {
		next = ip + sizeof(struct ipv6hdr);
		if (next + MIN_TRANSPORT > end)
			return 0;
		length = bpf_ntohs(*(__be16 *)(ip + 4));
		if (length > 0xffff - sizeof(struct ipv6hdr))
			return 0;
		length += length ? sizeof(struct ipv6hdr) : 0;
		values[PATTERN_ID] = PATTERN_ABSENT;
		values[PATTERN_TTL] = *(__u8 *)(ip + 7);
	}
	if (!length) /* aggregated beyond 64 KiB */
		return 0;
	values[PATTERN_LENGTH] = length;
	values[PATTERN_FRAGMENT] = 0;
	values[PATTERN_FLAGS] = values[PATTERN_HEADER_LENGTH] = values[PATTERN_WINDOW] =
		PATTERN_ABSENT;
	ports = bpf_ntohl(*(__be32 *)next);
	if (p->proto == IPPROTO_TCP) {
		__u32 words;

		if (next + sizeof(struct tcphdr) > end)
			return 0;
		words = *(__u8 *)(next + TCP_LENGTH) >> 4;
		if (words) {
			values[PATTERN_FLAGS] = *(__u8 *)(next + TCP_FLAGS);
			values[PATTERN_HEADER_LENGTH] = words;
			values[PATTERN_WINDOW] = bpf_ntohs(*(__be16 *)(next + 14));
		}
		next += words * 4;
	} else if (p->proto == IPPROTO_UDP) {
		next += sizeof(struct udphdr);
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		ports = (ports >> 24) << 16 | (ports >> 16 & 0xff);
		next += MIN_TRANSPORT;
	}
	if (has_port_fields(p->proto)) {
		values[PATTERN_SRC_PORT] = ports >> 16;
		values[PATTERN_DST_PORT] = ports & 0xffff;
	} else {
		values[PATTERN_SRC_PORT] = values[PATTERN_DST_PORT] = PATTERN_ABSENT;
	}
	if (next + 4 <= end) {
		values[PATTERN_PAYLOAD] = bpf_ntohl(*(__be32 *)next);
		return 1;
	}
	if (end_of(ctx, p) != end - data) /* it goes on in another buffer */
		return 0;
	values[PATTERN_PAYLOAD] = 0;
	for (int i = 24; i && next + 1 <= end; i -= 8, next++)
		values[PATTERN_PAYLOAD] |= *(__u8 *)next << i;
	return 1;
}

static __always_inline int is_within(const struct field_bounds *b, __u32 value)
{
	return value - b->low <= b->width;
}

/* Whether addresses, protocol and ports are a pattern's, as far as the parser knows them. */
static __always_inline int is_of_shape(const struct pattern *a, const struct packet *p)
{
	__u32 ports = bpf_ntohl(p->ports);

	if (!a->state || (a->family && a->family != p->family) ||
	    !is_within(&a->fields[PATTERN_PROTOCOL], p->proto))
		return 0;
	if (p->has_ports && (!is_within(&a->fields[PATTERN_SRC_PORT], ports >> 16) ||
			     !is_within(&a->fields[PATTERN_DST_PORT], ports & 0xffff)))
		return 0;
	if ((p->src[0] ^ a->src[0]) & a->src_mask[0] || (p->dst[0] ^ a->dst[0]) & a->dst_mask[0])
		return 0;
	if (p->family == 6)
		for (int i = 1; i < 4; i++)
			if ((p->src[i] ^ a->src[i]) & a->src_mask[i] ||
			    (p->dst[i] ^ a->dst[i]) & a->dst_mask[i])
				return 0;
	return 1;
}

static __always_inline int has_fields(const struct pattern *a, const struct pattern_cpu *mine)
{
	for (int i = 0; i < PATTERN_FIELDS - 1 && i < a->asks; i++) {
		__u32 f = a->asked[i] % FIELD_SLOTS;

		__u32 value = mine->values[f];

		if (f == PATTERN_FLAGS)
			value &= a->fields[PATTERN_COMPARED_FLAGS].low;
		if (!is_within(&a->fields[f], value))
			return 0;
	}
	return 1;
}

/*
 * The kernel's clock at the last tick. It is a load where that of now is a call: for ends, which
 * may be a tick late, not for rates.
 */
static __always_inline __u64 tick(struct pattern_cpu *mine)
{
	__u64 jiffies = bpf_jiffies64();

	if (mine->jiffies != jiffies || !mine->now) {
		mine->jiffies = jiffies;
		mine->now = bpf_ktime_get_ns();
	}
	return mine->now;
}

/*
 * Holds this CPU's packet to the rate of a pattern, by what it shares that with. A global function.
 */
__noinline int meter_sharers(__u32 i)
{
	struct cpu_row *row = this_row();
	struct pattern_sharers k = {};
	struct pattern_table *table;
	__u64 cost, now, fresh, *bucket;
	const struct packet *p;
	struct pattern *a;
	__u32 first = 0;

	table = bpf_map_lookup_elem(&patterns, &first);
	if (!row || !table || i >= MAX_PATTERNS) /* impossible */
		return REASON_CLEAN;
	p = &row->packet;
	a = &table->rows[i];
	k.row = i;
	k.serial = a->serial;
	k.family = p->family;
	if (a->sharing == SHARED_BY_SOURCE) {
		k.src[0] = p->src[0] & a->source_mask[p->family == 6];
		if (p->family == 6)
			k.src[1] = p->src[1] & a->source_mask[2];
	} else {
		for (int n = 0; n < 4 && (!n || p->family == 6); n++) {
			k.dst[n] = p->dst[n];
			if (a->sharing == SHARED_BY_FLOW)
				k.src[n] = p->src[n];
		}
	}
	if (a->sharing == SHARED_BY_FLOW) {
		k.proto = p->proto;
		k.ports = p->has_ports ? p->ports : 0;
	}
	now = bpf_ktime_get_ns();
	cost = a->rate.cost * (a->by_bytes ? p->len : 1) >> COST_SHIFT;
	bucket = bpf_map_lookup_elem(&pattern_buckets, &k);
	if (bucket)
		return charge(bucket, cost, a->rate.burst, now);
	fresh = now + cost;
	bpf_map_update_elem(&pattern_buckets, &k, &fresh, BPF_NOEXIST);
	return REASON_CLEAN;
}

/* Holds this CPU's packet to the rate of a pattern, which is enforced. */
static __always_inline enum reason meter_pattern(struct pattern *a, __u32 i, __u32 len)
{
	if (a->rate.cost == PENALTY_BLOCK)
		return REASON_PATTERN;
	if (sharing_rates && a->sharing)
		return meter_sharers(i);
	return meter(&a->rate, a->by_bytes ? len : 1, bpf_ktime_get_ns());
}

#define FIELDS_UNREAD REASON_COUNT /* not a reason: read_fields() must be called before */

/*
 * Returns REASON_PATTERN if a pattern drops this CPU's packet, whose fields may have been read,
 * otherwise REASON_CLEAN, or FIELDS_UNREAD. A global function.
 */
__noinline int try_patterns(struct context *ctx, __u32 read)
{
	struct cpu_row *row = this_row();
	struct pattern_table *table;
	struct pattern_cpu *mine = 0;
	struct packet *p;
	__u32 first = 0;

	table = bpf_map_lookup_elem(&patterns, &first);
	if (!row || !table) /* impossible */
		return REASON_CLEAN;
	p = &row->packet;
	for (__u32 i = 0; i < MAX_PATTERNS && i < table->used; i++) {
		struct pattern *a = &table->rows[i];
		struct pattern_counters *counters;

		if (!is_of_shape(a, p))
			continue;
		if (!mine)
			mine = patterns_here();
		if (!mine) /* impossible */
			return REASON_CLEAN;
		if (!read) {
			if (!read_in_place(ctx, p, mine->values))
				return FIELDS_UNREAD;
			set_conversing(mine, collateral ? conversing(ctx) : CONVERSING_UNKNOWN);
			read = 1;
		}
		if (!has_fields(a, mine) || tick(mine) >= a->rate.until)
			continue;
		counters = &mine->of[i];
		count(&counters->matched, p->len);
		counters->conversing += mine->conversing == CONVERSANT;
		counters->unknown += mine->conversing == CONVERSING_UNKNOWN;
		if (a->state != PATTERN_ENFORCED || meter_pattern(a, i, p->len) == REASON_CLEAN)
			continue;
		mine->last = i + 1;
		return REASON_PATTERN;
	}
	return REASON_CLEAN;
}

/*
 * Returns REASON_PATTERN if a pattern drops this CPU's packet, otherwise REASON_CLEAN. The functions
 * are called one after the other: within each other, they would need more stack than there is.
 */
static __always_inline int match_patterns(struct context *ctx)
{
	int r = try_patterns(ctx, 0);

	if (__builtin_expect(r == FIELDS_UNREAD, 0)) {
		read_fields(ctx);
		r = try_patterns(ctx, 1);
	}
	return r;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Patterns: packets that commands drop, or hold to a rate, by fields of their headers which keys
 * of lists do not have. There are few, tried in order; each ends by itself. One on trial only
 * counts. The twin is Patterns in filter/flood.
 *
 * A packet is read whole only where a pattern has its addresses, protocol and ports.
 */
#ifndef WEIR_PATTERN_H
#define WEIR_PATTERN_H

#include <linux/bpf.h>
#include <linux/in.h>
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

#define PATTERN_ABSENT 0xffffffff /* within no bounds but those that leave a field open */

struct field_bounds {
	__u32 low;
	__u32 width; /* the highest value, less low */
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
	struct field_bounds fields[PATTERN_FIELDS];
	struct penalty rate; /* cost PENALTY_BLOCK: all are dropped */
	__u32 rows;	     /* of the first: up to the last pattern */
	__u32 state;	     /* PATTERN_OFF, PATTERN_TRIAL, PATTERN_ENFORCED: written last */
	__u8 family;	     /* 0: of both */
	__u8 by_bytes;
	__u8 pad[54];
};

_Static_assert(sizeof(struct pattern) == 256, "patterns do not share cache lines");

struct pattern_counters {
	struct counter matched;
	struct counter dropped; /* neither allowed nor in monitor mode, nor by a list */
	__u64 conversing;	/* packets of matched: see conversing() */
	__u64 unknown;		/* of which it is not known whether they do */
};

struct pattern_cpu {
	struct sampler_record record; /* of the packet */
	__u32 values[PATTERN_FIELDS];
	__u32 last; /* the number of the pattern that has dropped a packet, from 1 */
	__u32 pad[3];
	struct pattern_counters of[MAX_PATTERNS];
};

_Static_assert(sizeof(struct pattern_cpu) % 64 == 0, "CPUs do not share cache lines");

/* max_entries: MAX_PATTERNS, and the number of possible CPUs */
ARRAY(patterns, struct pattern);
ARRAY(pattern_cpus, struct pattern_cpu);

/* Whether there are patterns. */
volatile const __u8 patterning = 0;

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

/* Reads the fields of this CPU's packet. A global function, like those in lists.h. */
__noinline int read_fields(struct context *ctx)
{
	struct pattern_cpu *mine = patterns_here();
	struct cpu_row *row = this_row();
	struct sampler_record *r;
	struct packet *p;
	__u32 tcp, ports;

	if (!row || !mine) /* impossible */
		return 0;
	p = &row->packet;
	r = &mine->record;
	*r = (struct sampler_record){};
	record_fields(ctx, p->network << 16 | (p->family == 4 ? ETH_P_IP : ETH_P_IPV6), p, r);
	tcp = r->proto == IPPROTO_TCP && r->header_length;
	ports = r->fragment != FRAGMENT_LATER &&
		(r->proto == IPPROTO_TCP || r->proto == IPPROTO_UDP || r->proto == IPPROTO_SCTP ||
		 r->proto == IPPROTO_ICMP || r->proto == IPPROTO_ICMPV6);
	mine->values[PATTERN_PROTOCOL] = r->proto;
	mine->values[PATTERN_FRAGMENT] = r->fragment;
	mine->values[PATTERN_FLAGS] = tcp ? r->flags : PATTERN_ABSENT;
	mine->values[PATTERN_LENGTH] = r->length;
	mine->values[PATTERN_SRC_PORT] = ports ? r->src_port : PATTERN_ABSENT;
	mine->values[PATTERN_DST_PORT] = ports ? r->dst_port : PATTERN_ABSENT;
	mine->values[PATTERN_TTL] = r->ttl;
	mine->values[PATTERN_ID] = p->family == 4 ? r->id : PATTERN_ABSENT;
	mine->values[PATTERN_HEADER_LENGTH] = tcp ? r->header_length : PATTERN_ABSENT;
	mine->values[PATTERN_WINDOW] = tcp ? r->window : PATTERN_ABSENT;
	mine->values[PATTERN_PAYLOAD] = (__u32)r->payload[0] << 24 | r->payload[1] << 16 |
					r->payload[2] << 8 | r->payload[3];
	mine->values[PATTERN_STRANGER] = r->conversing == STRANGER;
	return 0;
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
	__u32 out = 0;

	for (int i = 0; i < PATTERN_FIELDS; i++)
		out |= !is_within(&a->fields[i], mine->values[i]);
	return !out;
}

/* Whether this CPU's packet has the addresses, protocol and ports of a pattern. A global function. */
__noinline int has_shape(void)
{
	__u32 first = 0, rows;
	struct pattern *a = bpf_map_lookup_elem(&patterns, &first);
	struct cpu_row *row = this_row();

	if (!row || !a) /* impossible */
		return 0;
	rows = a->rows;
	for (__u32 i = 0; i < MAX_PATTERNS && i < rows; i++) {
		__u32 key = i;

		a = bpf_map_lookup_elem(&patterns, &key);
		if (!a) /* impossible */
			return 0;
		if (is_of_shape(a, &row->packet))
			return 1;
	}
	return 0;
}

/*
 * Returns REASON_PATTERN if a pattern drops this CPU's packet, whose fields were read, otherwise
 * REASON_CLEAN. A global function.
 */
__noinline int try_patterns(void)
{
	__u32 first = 0, rows;
	struct pattern_cpu *mine = patterns_here();
	struct pattern *a = bpf_map_lookup_elem(&patterns, &first);
	struct cpu_row *row = this_row();
	__u64 now = bpf_ktime_get_ns();
	struct packet *p;

	if (!row || !mine || !a) /* impossible */
		return REASON_CLEAN;
	p = &row->packet;
	rows = a->rows;
	for (__u32 i = 0; i < MAX_PATTERNS && i < rows; i++) {
		struct pattern_counters *counters = &mine->of[i];
		__u32 key = i;

		a = bpf_map_lookup_elem(&patterns, &key);
		if (!a) /* impossible */
			return REASON_CLEAN;
		if (!is_of_shape(a, p) || !has_fields(a, mine) || now >= a->rate.until)
			continue;
		count(&counters->matched, p->len);
		counters->conversing += mine->record.conversing == CONVERSANT;
		counters->unknown += mine->record.conversing == CONVERSING_UNKNOWN;
		if (a->state != PATTERN_ENFORCED ||
		    meter(&a->rate, a->by_bytes ? p->len : 1, now) == REASON_CLEAN)
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
	if (!has_shape())
		return REASON_CLEAN;
	read_fields(ctx);
	return try_patterns();
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Heavy hitters: Estan and Varghese's multistage filter with conservative
 * update, flow memory and shielding, one for each CPU. The twin of
 * filter/sketch's Bank, which says what it proves.
 *
 * A packet whose flow is in the flow memory is counted there, exactly. Any
 * other raises the sketch, until its estimate reaches the limit and the flow
 * enters the memory. A tracker has two banks of both, of which the control
 * plane reads one, and clears it, while packets are counted in the other.
 */
#ifndef WEIR_TRACKER_H
#define WEIR_TRACKER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "hash.h"
#include "key.h"
#include "packet.h"
#include "slots.h"

#define MAX_TRACKERS 4

/* What a tracker counts, and where: constants of the program. */
struct tracker {
	__u64 seed;	    /* of its key hash, secret */
	__u32 lines;	    /* of the sketch in a bank; 0: there is no such tracker */
	__u32 buckets;	    /* of the flow memory in a bank */
	__u32 first;	    /* its head among the lines of a bank; the sketch follows */
	__u32 first_bucket; /* among the flow buckets of a bank */
	__u8 by_bytes;	    /* the unit: bytes, not packets */
	__u8 tuple;	    /* keys have the tuple form, not that of one address */
	__u8 punishes;	    /* its flows may have penalties */
	__u8 pad[5];
	struct shape v4;
	struct shape v6;
};

/* The first line of a tracker in a bank. */
struct tracker_head {
	__u64 packets; /* all that were counted */
	__u64 bytes;
	__u64 denied; /* packets whose flow had to enter the memory, but it was full */
	__u64 admit;  /* units that bring a flow into the memory, and not below */
	__u64 share;  /* this share, times 2^32, of what was counted here so far */
	__u64 pad[3];
};

#define SKETCH_ROWS 4
#define SKETCH_PART 4 /* counters that a row has in a line */

#define MAX_LIMIT (1U << 31) /* of what brings a flow into the memory */

/* Counters saturate above MAX_LIMIT, so that they serve at any rate. */
union tracker_line {
	struct tracker_head head;
	__u32 counters[SKETCH_ROWS * SKETCH_PART];
};

_Static_assert(sizeof(union tracker_line) == 64, "a line is one cache line");

struct flow {
	__u64 packets; /* exact, since the flow entered */
	__u64 bytes;
	__u64 before; /* the sketch's estimate, in units, of what came earlier */
	struct key key;
};

_Static_assert(sizeof(struct flow) == 64, "a flow is one cache line");

struct flow_bucket {
	struct slots slots;
	struct flow flows[SLOTS];
};

/* What the control plane tells the trackers at run time. */
struct tracker_state {
	__u64 banks;	 /* bit i: the bank in which tracker i counts */
	__u64 penalties; /* that are in force */
	__u64 seed;	 /* the control plane's own: whence the trackers' seeds */
	__u64 identity;	 /* the control plane's own: of the trackers that count here */
	__u64 pad[4];
};

#define TRACKER_MAP(name, value_type)              \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, value_type);         \
	} name SEC(".maps")

TRACKER_MAP(tracker_now, struct tracker_state);
/* For each possible CPU two banks, in which the trackers follow one another. */
TRACKER_MAP(tracker_lines, union tracker_line);
TRACKER_MAP(tracker_flows, struct flow_bucket);

volatile const struct tracker trackers[MAX_TRACKERS] = {};
volatile const __u32 tracker_count = 0;
volatile const __u32 bank_lines = 0;
volatile const __u32 bank_buckets = 0;

/* The counters of a flow in a sketch, one in each row of a line. */
struct counters {
	__u32 *row[SKETCH_ROWS];
};

/* first is the line behind the head. */
static __always_inline int sketch_at(__u32 first, __u32 lines, __u64 h, struct counters *c)
{
	__u64 z = hash_nth(h, 0);
	__u32 i = first + hash_reduce(z, lines);
	union tracker_line *l = bpf_map_lookup_elem(&tracker_lines, &i);

	if (!l) /* cannot be */
		return 0;
	c->row[0] = &l->counters[0 * SKETCH_PART + (z >> 0) % SKETCH_PART];
	c->row[1] = &l->counters[1 * SKETCH_PART + (z >> 2) % SKETCH_PART];
	c->row[2] = &l->counters[2 * SKETCH_PART + (z >> 4) % SKETCH_PART];
	c->row[3] = &l->counters[3 * SKETCH_PART + (z >> 6) % SKETCH_PART];
	return 1;
}

static __always_inline __u32 sketch_least(const struct counters *c)
{
	__u32 least = *c->row[0];

	least = *c->row[1] < least ? *c->row[1] : least;
	least = *c->row[2] < least ? *c->row[2] : least;
	return *c->row[3] < least ? *c->row[3] : least;
}

/* Conservative update: no counter rises above what the flow may have had. */
static __always_inline void sketch_raise(const struct counters *c, __u32 to)
{
#pragma unroll
	for (int i = 0; i < SKETCH_ROWS; i++)
		if (*c->row[i] < to)
			*c->row[i] = to;
}

/*
 * Makes room in a full bucket: the smallest of its flows goes back into the
 * sketch, if it has had fewer than so many units. Gives SLOTS plus its slot, or
 * 0 if all flows stay.
 */
static __always_inline __u32 flow_evict(const volatile struct tracker *t, __u32 line,
					struct flow_bucket *b, __u64 units)
{
	__u32 victim = 0;
	struct counters c;

#pragma unroll
	for (int i = 0; i < SLOTS; i++) {
		struct flow *f = &b->flows[i];
		__u64 n = f->before + (t->by_bytes ? f->bytes : f->packets);

		if (n < units) {
			victim = SLOTS + i;
			units = n;
		}
	}
	if (!victim || !sketch_at(line + 1, t->lines, b->slots.hashes[victim % SLOTS], &c))
		return 0;
	sketch_raise(&c, units);
	b->slots.hashes[victim % SLOTS] = 0;
	settle();
	return victim;
}

static __always_inline struct flow *flow_enter(struct flow_bucket *b, __u32 slot, __u64 h,
					       struct key k, __u32 before)
{
	struct flow *f = &b->flows[slot % SLOTS];

	f->packets = 0;
	f->bytes = 0;
	f->before = before;
	f->key = k;
	/* The hash comes last: from then on the control plane may look. */
	settle();
	b->slots.hashes[slot % SLOTS] = h;
	return f;
}

static __always_inline struct key tracker_key(const volatile struct tracker *t,
					      const struct packet *p, __u64 *h)
{
	struct key k;

	if (p->family == 4 && t->tuple) {
		k = words_v4_flow(&t->v4, p);
		*h = hash_v4_flow(k, t->seed);
	} else if (p->family == 4) {
		k = words_v4(&t->v4, p);
		*h = hash_v4(k, t->seed);
	} else if (t->tuple) {
		k = words_v6_flow(&t->v6, p);
		*h = hash_v6_flow(k, t->seed);
	} else {
		k = words_v6(&t->v6, p);
		*h = hash_v6(k, t->seed);
	}
	*h += !*h; /* 0 is an empty slot */
	return k;
}

/* Counts a packet in the bank that has its head and its buckets there. */
static __always_inline void count_flow(const volatile struct tracker *t, __u32 line, __u32 bucket,
				       struct key k, __u64 h, __u32 len)
{
	__u32 i, slot, least, after, n = t->by_bytes ? len : 1;
	__u64 z = hash_nth(h, BUCKET_NTH), limit;
	union tracker_line *l = bpf_map_lookup_elem(&tracker_lines, &line);
	struct tracker_head *head;
	struct flow_bucket *b;
	struct counters c;
	struct flow *f;

	i = bucket + hash_reduce(z, t->buckets);
	b = bpf_map_lookup_elem(&tracker_flows, &i);
	if (!l || !b) /* cannot be: the maps have all banks */
		return;
	head = &l->head;
	head->packets += 1;
	head->bytes += len;

	slot = slots_find(&b->slots, h);
	if (!slot && b->slots.hashes[SLOTS - 1]) { /* full: it may be in the second */
		i = bucket + hash_reduce(z << 32, t->buckets);
		b = bpf_map_lookup_elem(&tracker_flows, &i);
		if (!b)
			return;
		slot = slots_find(&b->slots, h);
	}
	if (slot) {
		f = &b->flows[slot % SLOTS];
		goto in_memory;
	}

	if (!sketch_at(line + 1, t->lines, h, &c))
		return;
	least = sketch_least(&c);
	after = least + n < least ? ~0U : least + n;

	/* Of a product of 64 bits: up to 4 TB in an interval. */
	limit = ((t->by_bytes ? head->bytes : head->packets) >> 8) * head->share >> 24;
	if (limit < head->admit)
		limit = head->admit;
	if (limit > MAX_LIMIT)
		limit = MAX_LIMIT;
	if (after < limit) {
		sketch_raise(&c, after);
		return;
	}
	slot = slots_used(&b->slots);
	if (slot == SLOTS) {
		slot = flow_evict(t, line, b, after); /* after is no less than the limit */
		if (!slot) {
			head->denied += 1;
			sketch_raise(&c, after);
			return;
		}
	}
	f = flow_enter(b, slot, h, k, least);

in_memory:
	/* Counted here alone: the sketch, which others share, need not rise. */
	f->packets += 1;
	f->bytes += len;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Heavy hitters: Estan and Varghese's multistage filter with conservative
 * update, flow memory and shielding, one for each CPU. The twin of
 * filter/sketch's Bank, which documents its guarantees.
 *
 * A packet whose flow is in the flow memory is counted there, exactly. Any other
 * raises the sketch, until the estimate reaches the limit and the flow enters the
 * memory. A tracker has two banks of both: the control plane reads and clears one
 * while packets are counted in the other.
 *
 * Before both there may be a cold filter (Zhou et al., SIGMOD 2018): counters of a byte, which
 * count the first packets of most flows in a fifth of the instructions. All packets of a flow
 * raise its counter, which therefore bounds how many are there; the estimate is the sum of it and
 * of the sketch, and never too small.
 */
#ifndef WEIR_TRACKER_H
#define WEIR_TRACKER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "hash.h"
#include "key.h"
#include "packet.h"
#include "rules.h"
#include "slots.h"
#include "stats.h"
#include "wake.h"

#define MAX_TRACKERS 4
/* One more counts dropped packets. Its bit in the banks of a row is behind DIGEST_BANK. */
#define DROP_TRACKER MAX_TRACKERS
#define DROP_BANK    (MAX_TRACKERS + 1)

/* The unit, keys and memory of a tracker: constants of the program. */
struct tracker {
	struct secret secret; /* of its key hash */
	__u32 lines;	      /* of the sketch in a bank, an even number; 0: no such tracker */
	__u32 buckets;	      /* of the flow memory in a bank */
	__u32 first;	    /* its head among the lines of a bank; sketch and cold filter follow */
	__u32 first_bucket; /* among the flow buckets of a bank */
	__u32 pairs;	    /* lines of a detector's pairs in a bank; 0: counts every packet */
	__u32 first_pair;   /* among the lines of pairs of a bank */
	__u8 by_bytes;	    /* the unit: bytes, not packets */
	__u8 tuple;	    /* keys have the tuple form, not that of one address */
	__u8 punishes;	    /* its flows may have penalties */
	__u8 unexempt;	    /* counts only packets that the lists are asked for */
	__u8 dropped;	    /* counts dropped packets, by their cause too: see drop_cause() */
	__u8 cold_shift;    /* 64 less the bits of a counter's index in the cold filter; 0: none */
	__u8 pad[2];
	struct shape v4;
	struct shape v6;
	struct shape pair4; /* of a detector's pairs, of the tuple form */
	struct shape pair6;
	struct shape src4; /* of a packet's source */
	struct shape src6;
};

/* The first line of a tracker in a bank. */
struct tracker_head {
	__u64 packets; /* all that were counted */
	__u64 bytes;
	__u64 denied; /* packets of flows over the limit that found the memory full */
	__u64 admit;  /* the least limit, in units, of flows that enter the memory */
	__u32 share;  /* the limit as a share of the units counted so far, times 2^32: up to 2^31 */
	__u16 skip;   /* the cold filter's steps of a flow: see count_cold() */
	__u16 most;   /* the largest number that skip can have */
	__u64 spare;  /* a lower limit, in units, while there is room to spare */
	__u64 began;  /* by the control plane: when it began to count, in ns; 0: unknown */
	__u64 step;   /* of reports to a flow's window, as the power of 2 plus 1; 0: none */
};

#define LINE_COUNTERS 16
#define LINE_COLD     64 /* counters of the cold filter */

#define COLD_BYTES 9   /* a step of the cold filter, as a power of 2, of trackers by bytes */
#define COLD_FULL  255 /* a counter that nothing may raise: one of its flows is in the memory */

#define MAX_LIMIT (1U << 31) /* that a flow must reach to enter the memory */

/* Counters saturate above MAX_LIMIT, so they work at any rate. */
union tracker_line {
	struct tracker_head head;
	__u32 counters[LINE_COUNTERS];
};

_Static_assert(sizeof(union tracker_line) == 64, "a line is one cache line");

struct flow {
	__u64 packets; /* exact, since the flow entered */
	__u64 bytes;
	__u64 hash;
	struct key key;
};

_Static_assert(sizeof(struct flow) == 64, "a flow is one cache line");

/*
 * A tag has 15 bits of a flow's hash, and its upper bit says that the slot is used.
 * Four are in a word, the first in its lowest bits.
 */
struct flow_bucket {
	__u64 tags[SLOTS / 4];
	__u32 before[SLOTS]; /* estimate, by the sketch, of a flow's units before it entered */
	__u32 pad[4];
	struct flow flows[SLOTS];
};

_Static_assert(sizeof(struct flow_bucket) == 64 * (1 + SLOTS), "tags are one cache line");

#define TAG_USED  0x8000
#define TAG_ONES  0x0001000100010001ULL /* the lowest bit of each tag in a word */
#define TAG_SLOTS 0x1000340058007c00ULL /* see tag_find() */

/* The control plane's record of the user of this memory. */
struct tracker_state {
	__u8 seed[32];	/* the trackers' secrets derive from it */
	__u64 identity; /* of the trackers that count here */
};

KEPT_ARRAY(tracker_now, struct tracker_state);
/* Two banks for each possible CPU; in a bank, the trackers follow one another. */
KEPT_ADDRESSED_ARRAY(tracker_lines, union tracker_line);
KEPT_ADDRESSED_ARRAY(tracker_flows, struct flow_bucket);

volatile const struct tracker trackers[MAX_TRACKERS + 1] = {};
volatile const __u32 tracker_count = 0; /* without that of dropped packets */
volatile const __u32 bank_lines = 0;
volatile const __u32 bank_buckets = 0;

/* The counters of a flow in a sketch: one in each half. */
struct counters {
	__u32 *first;
	__u32 *second;
};

/*
 * Two cache misses that overlap. With a second counter in each line, errors would be
 * a quarter, but no more heavy hitters would be found (TestHeavyFlows). first is the
 * line behind the head.
 */
static __always_inline int sketch_at(__u32 first, __u32 lines, __u64 h, struct counters *c)
{
	/*
	 * The upper bits of the hash choose the bucket; these are independent of them.
	 * The second line needs further ones, by Fibonacci hashing.
	 */
	__u64 z = h * 0x9E3779B97F4A7C15ULL;
	__u32 half = lines / 2;
	__u32 i0 = first + hash_reduce(h << 16, half);
	__u32 i1 = first + half + hash_reduce(z, half);
	union tracker_line *l0 = AT(tracker_lines, i0);
	union tracker_line *l1 = AT(tracker_lines, i1);

	if (!l0 || !l1) /* impossible */
		return 0;
	c->first = &l0->counters[h % LINE_COUNTERS];
	c->second = &l1->counters[(z >> 16) % LINE_COUNTERS];
	return 1;
}

/* Without a branch, which would be mispredicted. */
static __always_inline __u64 least_of(__u64 a, __u64 b)
{
	__s64 d = a - b; /* both have 32 bits */
	__s64 less = d >> 63;

	/* Keeps the compiler from seeing, and branching on, a comparison. */
	asm volatile("" : "+r"(less));
	return b + (d & less);
}

static __always_inline __u32 sketch_least(const struct counters *c)
{
	return least_of(*c->first, *c->second);
}

/* Conservative update: no counter rises above what the flow may have had. */
static __always_inline void sketch_raise(const struct counters *c, __u32 to)
{
	*c->first = *c->first + to - least_of(*c->first, to);
	*c->second = *c->second + to - least_of(*c->second, to);
}

/* A step of the cold filter in units, as a power of 2. */
static __always_inline __u32 cold_step(const volatile struct tracker *t)
{
	return t->by_bytes ? COLD_BYTES : 0;
}

/* The multilinear hash of some of a key's words, of 32 bits each, whose upper bits are good. */
static __always_inline __u64 cold_words(const volatile struct tracker *t, struct key k, int words)
{
	__u64 z = (k.w[0] >> 32) * t->secret.pairs[0][1];

	if (t->tuple) /* the protocol; without one these are the same bits for all of a family */
		z += (__u32)k.w[0] * t->secret.pairs[0][0];
	for (int i = 1; i < words; i++) {
		z += (__u32)k.w[i] * t->secret.pairs[i][0];
		z += (k.w[i] >> 32) * t->secret.pairs[i][1];
	}
	return z;
}

static __always_inline __u64 cold_hash(const volatile struct tracker *t, const struct packet *p)
{
	if (p->family == 4)
		return t->tuple ? cold_words(t, key_v4_flow(&t->v4, p), 2)
				: cold_words(t, key_v4(&t->v4, p), 1);
	return t->tuple ? cold_words(t, key_v6_flow(&t->v6, p), 5)
			: cold_words(t, key_v6(&t->v6, p), 3);
}

/* A place in the cold filter of a bank: the bank's head, and a counter. */
struct cold {
	struct tracker_head *head;
	__u8 *counter;
};

/*
 * Finds the place of a packet's flow in the cold filter of the bank whose head is at line. Returns
 * whether there is a cold filter: not in memory of more than half a GiB, which is no single value.
 */
static __always_inline int cold_at(const volatile struct tracker *t, __u32 line,
				   const struct packet *p, struct cold *c)
{
	union tracker_line *l;
	__u64 i;

	if (!t->cold_shift || !tracker_lines_entries)
		return 0;
	i = cold_hash(t, p) >> t->cold_shift;
	l = AT_WITH(tracker_lines, line, t->lines + (1ULL << (64 - t->cold_shift)) / LINE_COLD);
	if (!l) /* impossible */
		return 0;
	c->head = &l->head;
	c->counter = (void *)l + (1 + t->lines) * sizeof(*l) + i;
	return 1;
}

/* The bank in which this CPU counts, by its bit in the row. */
static __always_inline __u32 bank_of(int bit, const struct cpu_row *row)
{
	return 2 * bpf_get_smp_processor_id() + (row->banks >> bit & 1);
}

/* The head of a tracker's bank in which this CPU counts, among the lines. */
static __always_inline __u32 bank_line(int tracker, const struct cpu_row *row)
{
	return bank_of(tracker, row) * bank_lines + trackers[tracker].first;
}

/*
 * Counts a packet in the cold filter and the totals of the bank whose head is at line, unless the
 * counter of its flow would rise above skip. Returns whether it has.
 *
 * Each packet of a flow raises its counter by its own steps, rounded up, and nothing lowers it. So
 * a flow has no more than skip steps in the cold filter alone, whatever others do: a quarter of
 * the limit at most.
 */
static __always_inline int count_cold(const volatile struct tracker *t, __u32 line,
				      const struct packet *p)
{
	struct cold c;
	__u32 after;

	if (!cold_at(t, line, p, &c))
		return 0;
	after = *c.counter + (t->by_bytes ? (p->len + (1 << COLD_BYTES) - 1) >> COLD_BYTES : 1);
	if (after > c.head->skip)
		return 0;
	*c.counter = after;
	c.head->packets += 1;
	c.head->bytes += p->len;
	return 1;
}

/* The units that a flow may have in the cold filter, by its counter. */
static __always_inline __u32 cold_units(const volatile struct tracker *t, const struct cold *c)
{
	return least_of(*c->counter, c->head->most) << cold_step(t);
}

/* Sets what is skipped by what spare and the limit's floor are. */
static __always_inline void cool(const volatile struct tracker *t, struct tracker_head *head)
{
	__u64 least = head->spare < head->admit ? head->spare : head->admit;
	__u64 skip = least >> (2 + cold_step(t));

	head->skip = skip < head->most ? skip : head->most;
}

/* The reason for which a packet was or would be dropped, and its list or 0. */
static __always_inline __u32 drop_cause(const struct packet *p)
{
	__u32 r = p->reason, list = 0;

	if (r == REASON_WOULD_BLOCK && is_on_trial(p->list))
		list = p->list;
	else if (r == REASON_WOULD_BLOCK)
		r = p->punished && p->list < 0 ? p->punished : REASON_BLOCKED;
	if (r == REASON_BLOCKED && p->list > 0)
		list = p->list;
	return list << 8 | r;
}

static __always_inline __u64 tracker_hash(const volatile struct tracker *t, const struct packet *p)
{
	__u64 h;

	if (p->family == 4)
		h = t->tuple ? packet_hash(KEY_V4_FLOW, &t->v4, p, &t->secret)
			     : packet_hash(KEY_V4, &t->v4, p, &t->secret);
	else
		h = t->tuple ? packet_hash(KEY_V6_FLOW, &t->v6, p, &t->secret)
			     : packet_hash(KEY_V6, &t->v6, p, &t->secret);
	if (t->dropped)
		h ^= drop_cause(p) * 0x9E3779B97F4A7C15ULL;
	return h + !h; /* 0 is an empty slot */
}

/* The hash under which the control plane spares a source, whatever the flow. */
static __always_inline __u64 source_hash(const volatile struct tracker *t, const struct packet *p)
{
	__u64 h = p->family == 4 ? packet_hash(KEY_V4, &t->src4, p, &t->secret)
				 : packet_hash(KEY_V6, &t->src6, p, &t->secret);

	return h + !h;
}

/*
 * The key of one address leaves room in a flow of dropped packets: for the cause, in
 * the upper half of the last word, and before it the destination of the packet with
 * which the flow entered.
 */
static __always_inline struct key dropped_key(const volatile struct tracker *t,
					      const struct packet *p)
{
	struct key k;

	if (p->family == 4) {
		k = key_v4(&t->v4, p);
		k.w[1] = le32(p->dst[0]);
		k.w[4] = 0;
	} else {
		k = key_v6(&t->v6, p);
		k.w[2] |= (__u64)le32(p->dst[0]) << 32;
		k.w[3] = pair(p->dst[1], p->dst[2]);
		k.w[4] = le32(p->dst[3]);
	}
	k.w[4] |= (__u64)drop_cause(p) << 32;
	return k;
}

static __always_inline struct key tracker_key(const volatile struct tracker *t,
					      const struct packet *p)
{
	if (t->dropped)
		return dropped_key(t, p);
	if (p->family == 4)
		return t->tuple ? key_v4_flow(&t->v4, p) : key_v4(&t->v4, p);
	return t->tuple ? key_v6_flow(&t->v6, p) : key_v6(&t->v6, p);
}

/*
 * The limit that a flow must reach to enter the memory: the larger of a floor and a
 * share of the units counted, a product of 64 bits. Beyond 2 TB in an interval it
 * wraps to less.
 */
static __always_inline __u64 tracker_limit(const volatile struct tracker *t,
					   const struct tracker_head *head)
{
	__u64 limit = ((t->by_bytes ? head->bytes : head->packets) >> 8) * head->share >> 24;

	if (limit < head->admit)
		limit = head->admit;
	return limit < MAX_LIMIT ? limit : MAX_LIMIT;
}

/* Bits that choose no bucket, unless there are more than 2^17. */
static __always_inline __u64 tag_of(__u64 h)
{
	return (h >> 32 & (TAG_USED - 1)) | TAG_USED;
}

static __always_inline void set_tag(struct flow_bucket *b, __u32 slot, __u64 tag)
{
	__u32 shift = 16 * (slot % 4);
	__u64 *word = &b->tags[slot / 4 % 2];

	*word = (*word & ~(0xffffULL << shift)) | tag << shift;
}

/* The upper bit of each tag in a word that is equal, at least up to the lowest of them. */
static __always_inline __u64 tags_equal(__u64 word, __u64 tag)
{
	__u64 differ = word ^ tag * TAG_ONES;

	return (differ - TAG_ONES) & ~differ & TAG_USED * TAG_ONES;
}

/*
 * Returns SLOTS plus the slot of a tag whose upper bit is set in one of two words, or 0. Of
 * several it takes the lowest bit in its word.
 */
static __always_inline __u32 slot_of(__u64 low, __u64 high)
{
	/* Bits 0, 16, 32 and 48 are of slots 0 to 3, and three bits higher those of 4 to 7. */
	__u64 found = low >> 15 | high >> 12;

	if (!found)
		return 0;
	/* The product with a power of two moves three bits to the top: the slot. */
	return SLOTS + ((found & -found) * TAG_SLOTS >> 61);
}

/* Returns SLOTS plus a slot with the tag, or 0. */
static __always_inline __u32 tag_find(const struct flow_bucket *b, __u64 tag)
{
	return slot_of(tags_equal(b->tags[0], tag), tags_equal(b->tags[1], tag));
}

/*
 * Returns SLOTS plus the slot of the flow with the hash in a bucket, or 0, where
 * another one has its tag. A global function, like those in lists.h.
 */
__noinline int flow_search(__u32 bucket, __u64 h)
{
	struct flow_bucket *b = AT(tracker_flows, bucket);
	__u32 found = 0;

	if (!b) /* impossible */
		return 0;
	for (__u32 i = 0; i < SLOTS; i++)
		if (b->flows[i].hash == h && b->tags[i / 4] >> 16 * (i % 4) & TAG_USED)
			found = SLOTS + i;
	return found;
}

/* Returns SLOTS plus the slot of the flow with the hash in bucket i, or 0. */
static __always_inline __u32 flow_find(const struct flow_bucket *b, __u32 i, __u64 h)
{
	__u32 slot = tag_find(b, tag_of(h));

	if (slot && b->flows[slot % SLOTS].hash != h)
		slot = flow_search(i, h);
	return slot;
}

/*
 * Makes room in a full bucket: its smallest flow goes back into the sketch, if it
 * has fewer units than the one to enter. Returns SLOTS plus its slot, or 0 if all
 * flows stay.
 */
static __always_inline __u32 flow_evict(const volatile struct tracker *t, __u32 line,
					struct tracker_head *head, struct flow_bucket *b,
					struct packet *p, __u64 units)
{
	struct counters c;
	__u32 victim = 0;

#pragma unroll
	for (int i = 0; i < SLOTS; i++) {
		struct flow *f = &b->flows[i];
		__u64 n = b->before[i] + (t->by_bytes ? f->bytes : f->packets);

		if (n < units) {
			victim = SLOTS + i;
			units = n;
		}
	}
	victim = forget(p, victim);
	if (units >= tracker_limit(t, head)) /* it should have entered */
		head->denied += 1;
	/* There is no room to spare: some hundred evictions bring any limit to any other. */
	if (head->spare < MAX_LIMIT) {
		head->spare += (head->spare >> 6) + 1;
		cool(t, head);
	}
	if (!victim || !sketch_at(line + 1, t->lines, b->flows[victim % SLOTS].hash, &c))
		return 0;
	sketch_raise(&c, units);
	set_tag(b, victim % SLOTS, 0);
	barrier();
	return victim;
}

/* Returns SLOTS plus the first slot that is not used, or 0. */
static __always_inline __u32 flow_room(const struct flow_bucket *b)
{
	__u64 low = ~b->tags[0] & TAG_USED * TAG_ONES;

	return slot_of(low, low ? 0 : ~b->tags[1] & TAG_USED * TAG_ONES);
}

/*
 * Enters the flow of this CPU's packet, the first to be counted, into a bucket of
 * the flow memory. A global function, like those in lists.h. Returns whether there
 * was room.
 */
__noinline int flow_enter(__u32 tracker, __u32 line, __u32 bucket, __u32 before, __u32 after)
{
	union tracker_line *l = AT(tracker_lines, line);
	struct flow_bucket *b = AT(tracker_flows, bucket);
	struct cpu_row *row = this_row();
	const volatile struct tracker *t;
	struct flow *f;
	__u32 slot;

	if (!l || !b || !row || tracker > DROP_TRACKER) /* impossible */
		return 0;
	t = &trackers[tracker];
	wake(row);
	slot = flow_room(b);
	if (!slot)
		slot = flow_evict(t, line, &l->head, b, &row->packet, after);
	if (!slot)
		return 0;
	slot %= SLOTS;
	f = &b->flows[slot];
	b->before[slot] = before;
	f->packets = 1;
	f->bytes = row->packet.len;
	f->key = tracker_key(t, &row->packet);
	f->hash = tracker_hash(t, &row->packet);
	/* The tag comes last: once it is set, the control plane may read the flow. */
	barrier();
	set_tag(b, slot, tag_of(f->hash));
	return 1;
}

/* Of units by which a flow's count grew, those up to the last multiple of its step. */
static __always_inline __u64 reported(const struct tracker_head *head, __u64 before, __u64 after)
{
	__u32 shift = (head->step - 1) & 63;

	return (after >> shift << shift) - (before >> shift << shift);
}

/*
 * Counts a packet that the cold filter has not counted, h being the hash of its flow's key, in the
 * bank whose head is at line and whose buckets begin at bucket. Returns the units that the flow's
 * window lacks.
 */
static __always_inline __u64 count_flow(__u32 tracker, struct cpu_row *row, const struct packet *p,
					__u32 line, __u32 bucket, __u64 h)
{
	const volatile struct tracker *t = &trackers[tracker];
	__u32 i, slot, cold = 0, least, after, n = t->by_bytes ? p->len : 1;
	union tracker_line *l = AT(tracker_lines, line);
	struct flow_bucket *b;
	struct cold filter;
	struct counters c;
	struct flow *f;
	__u64 units;

	i = bucket + hash_reduce(h, t->buckets);
	b = AT(tracker_flows, i);
	if (!l || !b) /* impossible: the maps have all banks */
		return 0;
	l->head.packets += 1;
	l->head.bytes += p->len;

	slot = flow_find(b, i, h);
	if (!slot && (__s64)b->tags[1] < 0) { /* full: it may be in the second */
		i = bucket + hash_reduce(h << 32, t->buckets);
		b = AT(tracker_flows, i);
		if (!b)
			return 0;
		slot = flow_find(b, i, h);
	}
	if (slot) {
		/* Shielding: the sketch, which other flows share, need not rise. */
		f = &b->flows[slot % SLOTS];
		f->packets += 1;
		f->bytes += p->len;
		if (!t->punishes || !l->head.step)
			return 0;
		units = t->by_bytes ? f->bytes : f->packets;
		return reported(&l->head, units - n, units);
	}
	if (!sketch_at(line + 1, t->lines, h, &c))
		return 0;
	if (cold_at(t, line, p, &filter))
		cold = cold_units(t, &filter);
	least = sketch_least(&c);
	least = least + cold < least ? ~0U : least + cold;
	after = least + n < least ? ~0U : least + n;
	if (after >= l->head.spare || after >= tracker_limit(t, &l->head)) {
		keep(row, p);
		if (flow_enter(tracker, line, i, least, after)) {
			if (t->cold_shift && cold_at(t, line, p, &filter))
				*filter.counter = COLD_FULL;
			return t->punishes && l->head.step ? reported(&l->head, 0, n) : 0;
		}
	}
	sketch_raise(&c, after - cold);
	return 0;
}

#endif

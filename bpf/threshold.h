/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Thresholds of trackers: the packet that lifts a flow over one imposes its penalty. The
 * control plane reports it, renews it, and weighs penalties against each other; it also
 * imposes those of thresholds that are a share of all traffic. The twin of filter/penalty's
 * Windows.
 *
 * Flows are counted exactly, in the flow memory of each CPU. Whenever a flow's count there
 * passes a multiple of the tracker's step, the CPU adds as much to the flow's window, which
 * all CPUs share. A window begins with the first such report, which does not count, and ends
 * when it is older than the tracker's interval. So a flow that is below the threshold in each
 * interval has no penalty, however long the control plane is away.
 */
#ifndef WEIR_THRESHOLD_H
#define WEIR_THRESHOLD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "hash.h"
#include "key.h"
#include "packet.h"
#include "penalty.h"
#include "slots.h"
#include "stats.h"
#include "tracker.h"

/* The threshold of a tracker, and the penalty of flows that exceed it. Times are in ns. */
struct threshold {
	__u64 units;  /* in a window; 0: the program imposes no penalties */
	__u64 window; /* its longest duration */
	__u64 lasts;  /* the penalty, from the last time that the threshold is exceeded */
	__u64 cost;   /* as in struct penalty */
	__u64 burst;
	__u64 pad[3];
};

KEPT_ARRAY(thresholds, struct threshold); /* one for each tracker */

#define SPARED (~0ULL) /* a time that is never reached */

struct window {
	__u64 since; /* SPARED: its flow has no penalties but those of the control plane */
	__u64 units;
};

struct window_bucket {
	struct slots slots;
	struct window entries[SLOTS];
};

KEPT_ARRAY(windows, struct window_bucket);

volatile const __u32 window_buckets = 0;
volatile const __u32 cpu_count = 1; /* possible ones */

static __always_inline int is_spared(__u64 h)
{
	__u32 i = hash_reduce(h, window_buckets), slot;
	struct window_bucket *b = bpf_map_lookup_elem(&windows, &i);

	if (!b) /* impossible */
		return 1;
	slot = slots_find(&b->slots, h);
	return slot && b->entries[slot % SLOTS].since == SPARED;
}

/*
 * Adds units of a flow to its window, and returns whether it has exceeded the threshold. Two
 * CPUs that begin windows of different flows in one slot at the same time may mix them up:
 * then the units of a step count for the wrong one.
 */
static __always_inline int window_add(const struct threshold *t, __u64 h, __u64 units, __u64 now)
{
	__u32 i = hash_reduce(h, window_buckets), slot;
	struct window_bucket *b = bpf_map_lookup_elem(&windows, &i);
	__u64 oldest = SPARED;
	struct window *w;

	if (!b) /* impossible */
		return 0;
	slot = slots_find(&b->slots, h);
	if (!slot) { /* the place of the oldest one; one that is not used has begun at 0 */
		for (__u32 n = 0; n < SLOTS; n++)
			if (b->entries[n].since < oldest) {
				oldest = b->entries[n].since;
				slot = SLOTS + n;
			}
		if (!slot)
			return 0;
		w = &b->entries[slot % SLOTS];
		w->since = now;
		w->units = 0;
		barrier();
		b->slots.hashes[slot % SLOTS] = h;
		return 0;
	}
	w = &b->entries[slot % SLOTS];
	if (w->since == SPARED)
		return 0;
	/* Another CPU may have begun it after now. */
	if ((__s64)(now - w->since) > (__s64)t->window) {
		w->since = now;
		w->units = 0;
		return 0;
	}
	__sync_fetch_and_add(&w->units, units);
	if (w->units < t->units)
		return 0;
	w->since = now;
	w->units = 0;
	return 1;
}

/* Imposes a penalty on a flow, or renews it, unless there is no room. */
static __always_inline void penalize(const struct threshold *t, __u64 h, __u64 now)
{
	__u32 i = hash_reduce(h, penalty_buckets), slot;
	struct penalty_bucket *b = bpf_map_lookup_elem(&penalties, &i);
	struct penalty *e;

	if (!b) /* impossible */
		return;
	slot = slots_find(&b->slots, h);
	if (!slot) {
		for (__u32 n = 0; n < SLOTS; n++)
			if (!b->slots.hashes[n] || b->entries[n].until <= now)
				slot = SLOTS + n;
		if (!slot)
			return;
		b->slots.hashes[slot % SLOTS] = 0;
		barrier();
		b->entries[slot % SLOTS].full = 0;
	}
	e = &b->entries[slot % SLOTS];
	e->cost = t->cost;
	e->burst = t->burst;
	e->until = now + t->lasts;
	barrier();
	b->slots.hashes[slot % SLOTS] = h;
	/* From now on all CPUs look for penalties; the control plane puts the number right. */
	for (__u32 cpu = 0; cpu < cpu_count; cpu++) {
		__u32 at = cpu;
		struct cpu_row *row = AT(reason_stats, at);

		if (row)
			row->penalties += 1;
	}
}

/*
 * Adds units of the flow of this CPU's packet, whose hash is h, to its window, and imposes
 * its penalty if it has exceeded the threshold. A global function, like those in lists.h.
 */
__noinline int report_flow(__u32 tracker, __u64 h, __u64 units)
{
	__u32 at = tracker;
	const struct threshold *t = bpf_map_lookup_elem(&thresholds, &at);
	struct cpu_row *row = this_row();
	__u64 now;

	if (!t || !row || tracker >= MAX_TRACKERS) /* impossible */
		return 0;
	wake(row);
	if (!t->units || row->packet.exempt)
		return 0;
	now = bpf_ktime_get_ns();
	if (!window_add(t, h, units, now) ||
	    is_spared(source_hash(&trackers[tracker], &row->packet)))
		return 0;
	penalize(t, h, now);
	return 1;
}

#endif

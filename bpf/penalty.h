/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Penalties of heavy hitters: a rate limit or a block that expires. The control plane and
 * threshold.h impose them based on exact counts; here they are only looked up, and not even
 * that while there are none. The twin of filter/penalty.
 *
 * The rate limit is the generic cell rate algorithm (ITU-T I.371): a token bucket
 * reduced to the time at which it will be full.
 */
#ifndef WEIR_PENALTY_H
#define WEIR_PENALTY_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "hash.h"
#include "packet.h"
#include "slots.h"

#define PENALTY_BLOCK (~0ULL) /* a cost that no bucket can pay */
#define COST_SHIFT    10

/* Times are nanoseconds of the kernel's monotonic clock. */
struct penalty {
	__u64 until; /* when the penalty expires */
	__u64 cost;  /* of a packet or of a byte, in ns / 2^COST_SHIFT */
	__u64 burst; /* ns: the depth of the bucket */
	__u64 full;  /* when the bucket is full again */
};

struct penalty_bucket {
	struct slots slots;
	struct penalty entries[SLOTS];
};

KEPT_ARRAY(penalties, struct penalty_bucket);

volatile const __u32 penalty_buckets = 0;

/*
 * Charges a packet that costs so many nanoseconds to a bucket. Returns REASON_RATE_LIMITED if it
 * exceeds the rate, otherwise REASON_CLEAN.
 */
static __always_inline enum reason charge(__u64 *bucket, __u64 cost, __u64 burst, __u64 now)
{
	__u64 full = *bucket;

	if (full > now + burst)
		return REASON_RATE_LIMITED;
	if (full < now)
		/* Two CPUs may race here, which lets one packet more pass. */
		*bucket = now + cost;
	else
		__sync_fetch_and_add(bucket, cost);
	return REASON_CLEAN;
}

/* Returns the reason to drop a packet of this many units for a penalty, or REASON_CLEAN. */
static __always_inline enum reason meter(struct penalty *e, __u32 units, __u64 now)
{
	__u64 cost;

	if (now >= e->until)
		return REASON_CLEAN;
	cost = e->cost;
	if (cost == PENALTY_BLOCK)
		return REASON_HEAVY;
	return charge(&e->full, cost * units >> COST_SHIFT, e->burst, now);
}

/* The same for the penalty of a flow, if it has one. */
static __always_inline enum reason penalty_of(__u64 h, __u32 units)
{
	__u32 i = hash_reduce(h, penalty_buckets), slot;
	struct penalty_bucket *b = bpf_map_lookup_elem(&penalties, &i);

	if (!b)
		return REASON_CLEAN;
	slot = slots_find(&b->slots, h);
	return slot ? meter(&b->entries[slot % SLOTS], units, bpf_ktime_get_ns()) : REASON_CLEAN;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counters, a row for each CPU, memory-mapped by the control plane, which reads
 * them without system calls. A CPU writes only its own row, so plain adds suffice.
 */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "packet.h"

struct counter {
	__u64 packets;
	__u64 bytes;
};

#define MAX_REASONS 24

/* How far the sampler is: see sampler.h. */
struct sampler_gap {
	__u32 left; /* packets until the next record, without its own */
	__u32 gap;  /* as drawn, with its own */
	__u64 pad;
};

/*
 * A CPU's counters, and the packet that it is processing. A program of an interface
 * and a direction runs once at a time on a CPU, since neither receive processing nor
 * sending, which disables bottom halves, preempts itself there.
 */
struct cpu_row {
	struct counter by_reason[MAX_REASONS];
	struct counter answered; /* of those that passed, by a SYN cookie: see syncookie.h */
	struct sampler_gap sampler;
	__u64 refuted;	   /* keys that passed the cascade, and that hot table or table refuted */
	__u64 events_lost; /* because the ring buffer was full */
	__u64 banks;	   /* set by the control plane: bit i is the active bank of tracker i */
	__u64 penalties;   /* set by the control plane: how many are active */
	struct packet packet;
};

_Static_assert(REASON_COUNT <= MAX_REASONS, "a row holds every reason");
_Static_assert(sizeof(struct cpu_row) == 512, "rows do not share cache lines");

/* max_entries: the number of possible CPUs, so that a CPU's lookup cannot fail */
KEPT_ADDRESSED_ARRAY(reason_stats, struct cpu_row);

/* max_entries: the number of possible CPUs times list_stride; list 0 is LIST_UNKNOWN. */
KEPT_ADDRESSED_ARRAY(list_stats, struct counter);

/* Counters of a CPU in list_stats: the lists and list 0. */
volatile const __u32 list_stride = 1;

static __always_inline void count(struct counter *c, __u32 len)
{
	c->packets += 1;
	c->bytes += len;
}

static __always_inline struct cpu_row *this_row(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return AT(reason_stats, cpu);
}

/* Makes p this CPU's packet, which global functions take from its row. */
static __always_inline void keep(struct cpu_row *row, const struct packet *p)
{
	if (p != &row->packet)
		row->packet = *p;
}

static __always_inline void count_reason(struct cpu_row *row, enum reason r, __u32 len)
{
	if (r < REASON_COUNT) /* always true, but the verifier cannot know */
		count(&row->by_reason[r], len);
}

static __always_inline void count_refuted(void)
{
	struct cpu_row *row = this_row();

	if (row)
		row->refuted += 1;
}

static __always_inline void count_list(__u32 list, __u32 len)
{
	__u32 i = bpf_get_smp_processor_id() * list_stride + list;
	struct counter *c = AT(list_stats, i);

	if (c)
		count(c, len);
}

#endif

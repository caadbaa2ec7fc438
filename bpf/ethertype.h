/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Frames that are counted as REASON_NOT_IP, by EtherType: which protocols to expect on
 * the link, and what `not_ip: drop` drops. A CPU counts the first types that it meets,
 * and all further ones together.
 */
#ifndef WEIR_ETHERTYPE_H
#define WEIR_ETHERTYPE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "stats.h"

#define MAX_ETHERTYPES	31
#define ETHERTYPE_TAKEN 0x10000

struct ethertype_count {
	__u64 type; /* with ETHERTYPE_TAKEN; 0: no type yet */
	struct counter frames;
};

struct ethertype_row {
	struct ethertype_count by_type[MAX_ETHERTYPES];
	struct counter others;
	__u64 pad;
};

_Static_assert(sizeof(struct ethertype_row) % 64 == 0, "CPUs do not share cache lines");

/* max_entries: the number of possible CPUs */
KEPT_ARRAY(ethertype_stats, struct ethertype_row);

/* Counts a frame. Below ETH_P_802_3_MIN is the length of an 802.3 frame: all are type 0. */
static __always_inline void count_ethertype(__u16 type, __u32 len)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ethertype_row *row = bpf_map_lookup_elem(&ethertype_stats, &cpu);
	__u64 wanted = ETHERTYPE_TAKEN | (type < ETH_P_802_3_MIN ? 0 : type);

	if (!row) /* impossible */
		return;
	for (int i = 0; i < MAX_ETHERTYPES; i++) {
		struct ethertype_count *c = &row->by_type[i];

		if (!c->type)
			c->type = wanted;
		if (c->type == wanted) {
			count(&c->frames, len);
			return;
		}
	}
	count(&row->others, len);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Limits: sources, or networks of them, that commands hold to a rate, over all interfaces. The
 * longest prefix that has a limit decides. The twin of filter/penalty's Limits.
 */
#ifndef WEIR_LIMIT_H
#define WEIR_LIMIT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"
#include "penalty.h"
#include "stats.h"

/* A prefix of a source behind its family. bits: of all words. */
struct limited_source {
	__u32 bits;
	__u32 family;
	__u32 addr[4];
};

#define SOURCE_BITS 160

struct source_limit {
	struct penalty rate;
	struct counter held; /* packets above the rate, of all CPUs */
	__u64 by_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct limited_source);
	__type(value, struct source_limit);
} limits SEC(".maps");

/* Whether any source is limited. */
volatile const __u8 limiting = 0;

/*
 * Returns the reason to drop this CPU's packet for the limit of its source, or REASON_CLEAN. A
 * global function, like those in lists.h.
 */
__noinline int limit_source(void)
{
	struct limited_source k = {.bits = SOURCE_BITS};
	struct cpu_row *row = this_row();
	struct source_limit *l;
	const struct packet *p;
	enum reason r;

	if (!row) /* impossible */
		return REASON_CLEAN;
	p = &row->packet;
	k.family = p->family;
	k.addr[0] = p->src[0];
	if (p->family == 6)
		for (int i = 1; i < 4; i++)
			k.addr[i] = p->src[i];
	l = bpf_map_lookup_elem(&limits, &k);
	if (!l)
		return REASON_CLEAN;
	r = meter(&l->rate, l->by_bytes ? p->len : 1, bpf_ktime_get_ns());
	if (r != REASON_CLEAN) {
		__sync_fetch_and_add(&l->held.packets, 1);
		__sync_fetch_and_add(&l->held.bytes, p->len);
	}
	return r;
}

#endif

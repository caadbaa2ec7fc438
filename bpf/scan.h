/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Detectors of scans: trackers that count the distinct addresses or ports that a source reaches,
 * or the sources which reach a destination, instead of packets. A Bloom filter
 * remembers the pairs of source and destination of the interval, and only a packet
 * whose pair is new is counted. The twin of filter/verdict's ScanDetector.
 *
 * Only packets that may begin a conversation count: the replies to a host that
 * connects to many others look like a scan of its ports. So do the answers of a name
 * server to a resolver that asks from any port: what looks like an answer over UDP counts
 * against its destination alone.
 *
 * All CPUs share the filter, since a source's packets may arrive on any. Once a pair
 * is known its line is only read. Two CPUs that set bits of a word at the same time
 * may lose those of one, whose pair is then counted twice.
 */
#ifndef WEIR_SCAN_H
#define WEIR_SCAN_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "context.h"
#include "key.h"
#include "packet.h"
#include "stats.h"
#include "tracker.h"

#define PAIR_BITS 4 /* that a pair sets in its line */

#define TCP_FLAGS	   13 /* offset in the header */
#define TCP_SYN		   0x02
#define TCP_ACK		   0x10
#define ICMP_ECHO_REQUEST  8
#define ICMP6_ECHO_REQUEST 128

/* Two banks, which all CPUs share; in a bank, the detectors follow one another. */
KEPT_ARRAY(tracker_pairs, struct line);

volatile const __u32 bank_pairs = 0; /* lines of a bank; 0: there are no detectors */
/* Hosts connect from this port or a higher one. */
volatile const __u32 ephemeral_port = 32768;

/* Servers that everybody asks answer from a lower port. */
#define PRIVILEGED_PORT 1024

enum begins {
	BEGINS_NOT,
	BEGINS,
	BEGINS_OR_ANSWERS,
};

/* The length of an IP header without extension headers, by its first byte. */
static __always_inline __u32 ip_header(const struct packet *p, __u8 first)
{
	return p->family == 4 ? (first & 15) * 4 : sizeof(struct ipv6hdr);
}

/*
 * Whether a packet with a whole transport header may begin a conversation. What
 * further buffers hide is taken to begin one.
 */
static __always_inline enum begins may_begin(struct context *ctx, const struct packet *p)
{
	__u8 *pos = (void *)(long)ctx->data + p->network, *end = (void *)(long)ctx->data_end;
	__u8 copy[TCP_FLAGS + 1];

	if (p->proto == IPPROTO_UDP) {
		__u32 ports = bpf_ntohl(p->ports), from = ports >> 16, to = ports & 0xffff;

		if (!p->has_ports || to >= ephemeral_port)
			return BEGINS_NOT;
		return from < PRIVILEGED_PORT && to >= PRIVILEGED_PORT ? BEGINS_OR_ANSWERS : BEGINS;
	}
	if (p->proto == IPPROTO_TCP ? !p->has_ports
				    : p->proto != IPPROTO_ICMP && p->proto != IPPROTO_ICMPV6)
		return BEGINS_NOT;
	if (!p->plain)
		return p->has_ports ? BEGINS : BEGINS_NOT;
	if (no_link_header) {
		if (load_bytes(ctx, p->network, copy, 1) ||
		    load_bytes(ctx, p->network + ip_header(p, *copy), copy, sizeof(copy)))
			return BEGINS;
		pos = copy;
	} else {
		if (pos + 1 > end)
			return BEGINS;
		pos += ip_header(p, *pos);
		if (pos + sizeof(copy) > end)
			return BEGINS;
	}
	if (p->proto == IPPROTO_TCP)
		return (pos[TCP_FLAGS] & (TCP_SYN | TCP_ACK)) == TCP_SYN ? BEGINS : BEGINS_NOT;
	return *pos == (p->family == 4 ? ICMP_ECHO_REQUEST : ICMP6_ECHO_REQUEST) ? BEGINS
										 : BEGINS_NOT;
}

/* Remembers the pair of a packet in a detector's active bank, and returns whether it is new. */
static __always_inline int is_new_pair(int i, struct cpu_row *row, const struct packet *p)
{
	const volatile struct tracker *t = &trackers[i];
	__u64 h = p->family == 4 ? packet_hash(KEY_V4_FLOW, &t->pair4, p, &t->secret)
				 : packet_hash(KEY_V6_FLOW, &t->pair6, p, &t->secret);
	__u32 at = (row->banks >> i & 1) * bank_pairs + t->first_pair + hash_reduce(h, t->pairs);
	struct line *l = bpf_map_lookup_elem(&tracker_pairs, &at);

	/* A known pair is only read: to write would take the line from other CPUs. */
	if (!l || line_test(l, h, PAIR_BITS))
		return 0;
	line_set(l, h, PAIR_BITS);
	return 1;
}

/*
 * The trackers that count this CPU's packet, as a bit each: detectors of scans, if its pair is new,
 * and all others. A global function, like those in lists.h.
 */
__noinline int counting(struct context *ctx)
{
	struct cpu_row *row = this_row();
	enum begins begins;
	int all = 0;

	if (!row) /* impossible */
		return 0;
	/* Detectors of scans do not count what is exempt. */
	begins = row->packet.exempt ? BEGINS_NOT : may_begin(ctx, &row->packet);
	for (int i = 0; i < MAX_TRACKERS && i < tracker_count; i++) {
		int counts = begins == BEGINS || (begins && !trackers[i].v4.src_mask[0]);

		if (!trackers[i].pairs || (counts && is_new_pair(i, row, &row->packet)))
			all |= 1 << i;
		barrier();
	}
	return all;
}

#endif

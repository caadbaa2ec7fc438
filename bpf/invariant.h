/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The invariant part of a packet: the fields that do not change while it is
 * forwarded. The twin of package filter/invariant, whose Append documents the layout.
 *
 * It is not serialised byte by byte, but built in registers from the little-endian
 * words that the hashes read, for the reason that universal.h gives.
 */
#ifndef WEIR_INVARIANT_H
#define WEIR_INVARIANT_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "key.h"
#include "parse.h"

#define INVARIANT_V4 28 /* bytes */
#define INVARIANT_V6 60

#define PAYLOAD_V4 8
#define PAYLOAD_V6 20
#define BEHIND	   4 /* bytes behind it, if all are there, to take a checksum's place */

/* Stored one after the other, the words are the invariant part. */
struct invariant {
	__u64 w[8]; /* as many as its length takes; the upper half of the last is 0 */
};

/* A number's two bytes in network order, as part of a little-endian word. */
static __always_inline __u32 net16(__u16 n)
{
	return __builtin_bswap16(n);
}

/*
 * Reads the n bytes of a payload that is too short, which is rare; the rest of the
 * words stays zero. Returns 0 where the packet ends before.
 */
static __always_inline int short_payload(const __u8 *pos, const void *end, __u32 n, int most,
					 __u64 *w)
{
	if ((void *)pos > end) /* within a header, if there is no payload */
		return 0;
#pragma unroll
	for (int i = 0; i < most; i++) {
		if (i >= n)
			continue; /* not break, which clang does not unroll */
		if ((void *)(pos + i + 1) > end)
			return 0;
		w[i / 8] |= (__u64)pos[i] << 8 * (i % 8);
	}
	return 1;
}

/*
 * Replaces the checksum of a protocol, which a sender may leave to a NIC on the way, by what
 * is behind the payload.
 */
static __always_inline void leave_out_v4(__u8 proto, __u64 behind, struct invariant *out)
{
	switch (proto) {
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		out->w[3] = (out->w[3] & 0xffff) | (behind & 0xffff) << 16;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		out->w[2] = (out->w[2] & 0xffffffffffff) | behind << 48;
		break;
	}
}

static __always_inline void leave_out_v6(__u8 proto, __u64 behind, struct invariant *out)
{
	switch (proto) {
	case IPPROTO_TCP:
		out->w[7] = (out->w[7] & ~0xffffULL) | (behind & 0xffff);
		break;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		out->w[5] = (out->w[5] & 0xffffffffffff) | behind << 48;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		out->w[5] = (out->w[5] & ~(0xffffULL << 16)) | (behind & 0xffff) << 16;
		break;
	case IPPROTO_SCTP:
		out->w[6] = (out->w[6] & ~0xffffffffULL) | behind;
		break;
	}
}

static __always_inline int invariant_v4(const struct cursor *c, struct invariant *out)
{
	__u32 *ip = c->pos, *payload, header, left, behind = 0;
	__u64 rest = 0;

	if ((void *)(ip + 5) > c->end)
		return 0;
	header = (*(__u8 *)ip & 0x0f) * 4;
	left = bpf_ntohs(*((__be16 *)ip + 1));
	if (header < 20 || left < header)
		return 0;
	left -= header;
	payload = c->pos + header;
	if (left >= PAYLOAD_V4) {
		if ((void *)(payload + 2) > c->end)
			return 0;
		rest = pair(payload[0], payload[1]);
		if (left >= PAYLOAD_V4 + BEHIND) {
			if ((void *)(payload + 3) > c->end)
				return 0;
			behind = le32(payload[2]);
		}
	} else if (!short_payload((__u8 *)payload, c->end, left, PAYLOAD_V4, &rest)) {
		return 0;
	}
	out->w[0] = pair_head(0x45 | net16(left + 20) << 16, ip[1]); /* identification, fragment */
	out->w[1] = pair_head((__u32)((__u8 *)ip)[9] << 8, ip[3]);   /* protocol, source */
	out->w[2] = rest << 32 | le32(ip[4]);
	out->w[3] = rest >> 32;
	if (!(((__be16 *)ip)[3] & bpf_htons(IPV4_OFFSET_MASK)))
		leave_out_v4(((__u8 *)ip)[9], behind, out);
	return INVARIANT_V4;
}

static __always_inline int invariant_v6(const struct cursor *c, struct invariant *out)
{
	__u32 *ip = c->pos, *payload, header = 0, left, behind = 0;
	__u64 rest[3] = {};
	__u8 next;

	if ((void *)(ip + 10) > c->end)
		return 0;
	left = bpf_ntohs(*((__be16 *)ip + 2));
	next = ((__u8 *)ip)[6];
	if (next == IPPROTO_HOPOPTS) {
		__u8 *options = (__u8 *)(ip + 10);

		if (left < 8 || (void *)(options + 8) > c->end)
			return 0;
		next = options[0];
		header = 8 * (1 + options[1]);
		if (left < header)
			return 0;
		left -= header;
	}
	payload = (void *)(ip + 10) + header;
	if (left >= PAYLOAD_V6) {
		if ((void *)(payload + 5) > c->end)
			return 0;
		rest[0] = pair(payload[0], payload[1]);
		rest[1] = pair(payload[2], payload[3]);
		rest[2] = le32(payload[4]);
		if (left >= PAYLOAD_V6 + BEHIND) {
			if ((void *)(payload + 6) > c->end)
				return 0;
			behind = le32(payload[5]);
		}
	} else if (!short_payload((__u8 *)payload, c->end, left, PAYLOAD_V6, rest)) {
		return 0;
	}
	out->w[0] = 0x60 | (__u64)(net16(left) | (__u32)next << 16) << 32;
	out->w[1] = pair(ip[2], ip[3]);
	out->w[2] = pair(ip[4], ip[5]);
	out->w[3] = pair(ip[6], ip[7]);
	out->w[4] = pair(ip[8], ip[9]);
	out->w[5] = rest[0];
	out->w[6] = rest[1];
	out->w[7] = rest[2];
	leave_out_v6(next, behind, out);
	return INVARIANT_V6;
}

/*
 * Reads the invariant part of the packet whose IP header is at the cursor, which
 * does not move. Returns its length in bytes, or 0 where the packet is malformed or
 * ends before (also by the end of the first buffer); the words are then undefined.
 */
static __always_inline int invariant_of(const struct cursor *c, struct invariant *out)
{
	__u8 *first = c->pos;

	if ((void *)(first + 1) > c->end)
		return 0;
	switch (*first >> 4) {
	case 4:
		return invariant_v4(c, out);
	case 6:
		return invariant_v6(c, out);
	}
	return 0;
}

#endif

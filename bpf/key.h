/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shapes and keys: the fields of a packet that are matched exactly. The twin of
 * package filter/key, which documents the serialised layout.
 *
 * Keys are not serialised byte by byte, but built in registers from the words that
 * the hash reads.
 */
#ifndef WEIR_KEY_H
#define WEIR_KEY_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "hash.h"
#include "packet.h"
#include "universal.h"

/* Of the hash of listed keys, drawn anew for each generation. */
volatile const struct secret key_secret = {};

/* The first byte of a key, package key's Fields. */
#define FIELD_V6       1
#define FIELD_SRC_PORT 2
#define FIELD_DST_PORT 4
#define FIELD_PROTO    8

/*
 * A shape, expanded by the control plane into the masks that reduce a packet to
 * its key. Masks of addresses and ports are in network order.
 */
struct shape {
	__u32 head; /* key bytes 0 … 3 as the hash reads them: fields, bits, bits, 0 */
	__u32 gate; /* one of GATE_*: when the shape is probed */
	__u32 src_mask[4];
	__u32 dst_mask[4];
	__u32 ports_mask;
	__u32 proto_mask; /* for key byte 3: 0xff << 24, or 0 */
};

_Static_assert(sizeof(struct shape) == 48, "struct shape is shared with Go");

/* A word of the packet as the hash reads it, which is little-endian. */
static __always_inline __u32 le32(__u32 raw)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return raw;
#else
	return __builtin_bswap32(raw);
#endif
}

static __always_inline __u64 pair(__u32 low, __u32 high)
{
	return (__u64)le32(high) << 32 | le32(low);
}

/* head is not from the packet, but already little-endian. */
static __always_inline __u64 pair_head(__u32 head, __u32 high)
{
	return (__u64)le32(high) << 32 | head;
}

/*
 * The words of a packet's key under a shape, as the hash reads them. Stored one after
 * the other, they are the serialised key.
 */
#define KEY_WORDS 5

struct key {
	__u64 w[KEY_WORDS]; /* a short key has only the first ones */
};

/* One address; the mask of the other is zero. */
static __always_inline struct key key_v4(const volatile struct shape *s, const struct packet *p)
{
	__u32 a = (p->src[0] & s->src_mask[0]) | (p->dst[0] & s->dst_mask[0]);

	return (struct key){{pair_head(s->head, a)}};
}

static __always_inline struct key key_v6(const volatile struct shape *s, const struct packet *p)
{
	__u32 a0 = (p->src[0] & s->src_mask[0]) | (p->dst[0] & s->dst_mask[0]);
	__u32 a1 = (p->src[1] & s->src_mask[1]) | (p->dst[1] & s->dst_mask[1]);
	__u32 a2 = (p->src[2] & s->src_mask[2]) | (p->dst[2] & s->dst_mask[2]);
	__u32 a3 = (p->src[3] & s->src_mask[3]) | (p->dst[3] & s->dst_mask[3]);

	return (struct key){{pair_head(s->head, a0), pair(a1, a2), le32(a3)}};
}

static __always_inline __u32 flow_head(const volatile struct shape *s, const struct packet *p)
{
	return s->head | ((__u32)p->proto << 24 & s->proto_mask);
}

static __always_inline struct key key_v4_flow(const volatile struct shape *s,
					      const struct packet *p)
{
	return (struct key){{pair_head(flow_head(s, p), p->src[0] & s->src_mask[0]),
			     pair(p->dst[0] & s->dst_mask[0], p->ports & s->ports_mask)}};
}

static __always_inline struct key key_v6_flow(const volatile struct shape *s,
					      const struct packet *p)
{
	return (struct key){{pair_head(flow_head(s, p), p->src[0] & s->src_mask[0]),
			     pair(p->src[1] & s->src_mask[1], p->src[2] & s->src_mask[2]),
			     pair(p->src[3] & s->src_mask[3], p->dst[0] & s->dst_mask[0]),
			     pair(p->dst[1] & s->dst_mask[1], p->dst[2] & s->dst_mask[2]),
			     pair(p->dst[3] & s->dst_mask[3], p->ports & s->ports_mask)}};
}

/* Kinds of keys. Each has a fixed length, and each use is compiled for one kind. */
enum key_form {
	KEY_V4, /* one address */
	KEY_V4_FLOW,
	KEY_V6,
	KEY_V6_FLOW,
};

static __always_inline int is_flow(enum key_form form)
{
	return form == KEY_V4_FLOW || form == KEY_V6_FLOW;
}

/* The packet's key under a shape. */
static __always_inline struct key key_of(enum key_form form, const volatile struct shape *s,
					 const struct packet *p)
{
	switch (form) {
	case KEY_V4:
		return key_v4(s, p);
	case KEY_V4_FLOW:
		return key_v4_flow(s, p);
	case KEY_V6:
		return key_v6(s, p);
	default:
		return key_v6_flow(s, p);
	}
}

static __always_inline __u64 key_hash(enum key_form form, struct key k,
				      const volatile struct secret *secret)
{
	switch (form) {
	case KEY_V4:
		return universal(secret, k.w, 8);
	case KEY_V4_FLOW:
		return universal(secret, k.w, 16);
	case KEY_V6:
		return universal(secret, k.w, 20);
	default:
		return universal(secret, k.w, 40);
	}
}

/* The hash of the packet's key under a shape. */
static __always_inline __u64 packet_hash(enum key_form form, const volatile struct shape *s,
					 const struct packet *p,
					 const volatile struct secret *secret)
{
	return key_hash(form, key_of(form, s, p), secret);
}

#endif

//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Programs for benchmarks and tests: weir's own stages, and the kernel's maps
 * instead of them, with the same keys, in the same loop or behind the same
 * parser. No part of the data plane.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "multicast.h"
#include "pipeline.h"
#include "universal.h"
#include "xxh64.h"

/*
 * The keys to look up, in turn: IPv4 addresses in network byte order, in the
 * first half of a word, as an array's entries are whole words. The second half
 * is for the answers of `ask`.
 */
#define BENCH_KEYS (1 << 20)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BENCH_KEYS);
	__type(key, __u32);
	__type(value, __u32[2]);
} bench_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} bench_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1);
	__type(value, __u32);
} bench_bloom SEC(".maps");

struct lpm_key {
	__u32 bits;
	__u32 addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct lpm_key);
	__type(value, __u32);
} bench_lpm SEC(".maps");

/* The least that a filter of a size costs: a read of one of its lines. */
ARRAY(bench_lines, struct line);
volatile const __u32 bench_line_count = 1;

/*
 * Lookups in a loop. One run does LOOKUPS of them and continues where the last
 * run ended.
 */
#define LOOKUPS 8192

struct loop {
	__u32 at;
	__u32 hits;
};

struct loop bench_loop = {};

static __always_inline __u32 *next_entry(struct loop *l)
{
	__u32 i = l->at++ % BENCH_KEYS;

	return bpf_map_lookup_elem(&bench_keys, &i);
}

static __always_inline __u32 next_key(struct loop *l)
{
	__u32 *key = next_entry(l);

	return key ? *key : 0;
}

/* weir's hash of an IPv4 source. */
static __always_inline __u64 address_hash(__u32 addr)
{
	struct key k = {{pair_head(32 << 8, addr)}};

	return key_hash(KEY_V4, k, &key_secret);
}

static __always_inline void look_up_empty(struct loop *l)
{
	l->hits += next_key(l) & 1;
}

static __always_inline void look_up_weir(struct loop *l)
{
	struct set_maps maps = BLOCK_MAPS(open_block, confirm_block, 0);
	struct packet p = {.list = LIST_NONE};

	if (block.quotient.lines) {
		l->hits += prefix_match(&block, maps, next_key(l), 0, 1) != LIST_NONE;
		return;
	}
	set_probe(&block, maps, &p, address_hash(next_key(l)));
	l->hits += p.list != LIST_NONE;
}

/* The pipeline's own lookup, with markers and all shapes. */
static __always_inline void look_up_match(struct loop *l)
{
	struct cpu_row *row = this_row();

	if (!row)
		return;
	row->packet.family = 4;
	row->packet.src[0] = next_key(l);
	l->hits += match_block(&row->packet) != LIST_NONE;
}

/* The same; stores the answer beside the key. */
static __always_inline void look_up_ask(struct loop *l)
{
	struct cpu_row *row = this_row();
	__u32 *entry = next_entry(l);

	if (!row || !entry)
		return;
	row->packet.family = 4;
	row->packet.src[0] = entry[0];
	entry[1] = match_block(&row->packet) != LIST_NONE;
	l->hits += entry[1];
}

/* No lookup: the first tracker counts a packet of the key. */
static __always_inline void look_up_track(struct loop *l)
{
	struct cpu_row *row = this_row();

	if (!row)
		return;
	row->packet.family = 4;
	row->packet.src[0] = next_key(l);
	row->packet.len = 64;
	track(0, row); /* without detectors of scans, which read the frame */
	l->hits += row->packet.punished != REASON_CLEAN;
}

static __always_inline void look_up_hash(struct loop *l)
{
	__u32 key = next_key(l);

	l->hits += bpf_map_lookup_elem(&bench_hash, &key) != 0;
}

static __always_inline void look_up_bloom(struct loop *l)
{
	__u32 key = next_key(l);

	l->hits += bpf_map_peek_elem(&bench_bloom, &key) == 0;
}

/* Reads a word of a line that one product chooses: no lookup can compute less. */
static __always_inline int line_read(__u32 addr)
{
	__u32 p = addr * 0x9E3779B1, n = (__u64)p * bench_line_count >> 32;
	struct line *l = bpf_map_lookup_elem(&bench_lines, &n);

	return l && l->words[p & (LINE_WORDS - 1)];
}

static __always_inline void look_up_line(struct loop *l)
{
	l->hits += line_read(next_key(l));
}

static __always_inline void look_up_lpm(struct loop *l)
{
	struct lpm_key key = {32, next_key(l)};

	l->hits += bpf_map_lookup_elem(&bench_lpm, &key) != 0;
}

#define LOOP(name)                                       \
	static long step_##name(__u32 i, struct loop *l) \
	{                                                \
		look_up_##name(l);                       \
		return 0;                                \
	}                                                \
                                                         \
	SEC("xdp")                                       \
	int loop_##name(struct xdp_md *ctx)              \
	{                                                \
		struct loop l = bench_loop;              \
                                                         \
		bpf_loop(LOOKUPS, step_##name, &l, 0);   \
		bench_loop = l;                          \
		return XDP_PASS;                         \
	}

LOOP(empty)
LOOP(weir)
LOOP(match)
LOOP(ask)
LOOP(track)
LOOP(hash)
LOOP(bloom)
LOOP(lpm)
LOOP(line)

/*
 * Hashes of keys of the lengths that keys and the invariant parts of packets have. Each
 * key depends on the hash before it: the time is that from a key to its hash, which a
 * lookup waits for.
 */
volatile const struct secret bench_secret = {};

#define HASH_LOOP(length, xxh64)                                              \
	static __always_inline void look_up_universal##length(struct loop *l) \
	{                                                                     \
		__u64 k = (next_key(l) ^ l->hits) * XXH_P1,                   \
		      w[8] = {k, k + 1, k + 2, k + 3, k + 4, k + 5, k};       \
                                                                              \
		w[length / 8] = (__u32)w[length / 8];                         \
		l->hits = universal(&bench_secret, w, length);                \
	}                                                                     \
                                                                              \
	static __always_inline void look_up_xxh##length(struct loop *l)       \
	{                                                                     \
		__u64 k = (next_key(l) ^ l->hits) * XXH_P1,                   \
		      w[8] = {k, k + 1, k + 2, k + 3, k + 4, k + 5, k};       \
                                                                              \
		w[length / 8] = (__u32)w[length / 8];                         \
		l->hits = xxh64;                                              \
	}                                                                     \
                                                                              \
	LOOP(universal##length)                                               \
	LOOP(xxh##length)

HASH_LOOP(8, xxh64_8(bench_secret.offsets[0][0], w[0]))
HASH_LOOP(16, xxh64_16(bench_secret.offsets[0][0], w[0], w[1]))
HASH_LOOP(20, xxh64_20(bench_secret.offsets[0][0], w[0], w[1], w[2]))
HASH_LOOP(28, xxh64_28(bench_secret.offsets[0][0], w[0], w[1], w[2], w[3]))
HASH_LOOP(40, xxh64_40(bench_secret.offsets[0][0], w[0], w[1], w[2], w[3], w[4]))
HASH_LOOP(60, xxh64_60(bench_secret.offsets[0][0], w))

/* The hashes of the first bytes of words, for tests: of 4, 8, 12, … bytes. */
struct {
	__u64 words[8];
	__u64 hashes[UNIVERSAL_MAX_LEN / 4 + 1];
} bench_hashes = {};

SEC("xdp")
int hash_words(struct xdp_md *ctx)
{
#pragma unroll
	for (int n = 0; n <= UNIVERSAL_MAX_LEN / 4; n++) {
		__u64 w[8] = {};

#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (2 * i < n)
				w[i] = bench_hashes.words[i];
			if (2 * i + 1 == n)
				w[i] = (__u32)w[i];
		}
		bench_hashes.hashes[n] = universal(&bench_secret, w, 4 * n);
	}
	return XDP_PASS;
}

/*
 * On the wire. All parse, count and drop every packet; only the lookup
 * differs.
 */
static __always_inline int wire(struct xdp_md *ctx, int (*lookup)(struct packet *p))
{
	struct cursor c;
	struct cpu_row *row = begin(ctx, &c);
	enum reason r;

	if (!row)
		return XDP_ABORTED;
	r = parse(ctx, &c, &row->packet);
	barrier();
	leave(ctx, row, &row->packet, lookup(&row->packet) ? REASON_BLOCKED : r);
	return XDP_DROP;
}

static __always_inline int lookup_none(struct packet *p)
{
	return 0;
}

static __always_inline int lookup_hash(struct packet *p)
{
	return bpf_map_lookup_elem(&bench_hash, &p->src[0]) != 0;
}

static __always_inline int lookup_bloom(struct packet *p)
{
	return bpf_map_peek_elem(&bench_bloom, &p->src[0]) == 0;
}

static __always_inline int lookup_lpm(struct packet *p)
{
	struct lpm_key key = {32, p->src[0]};

	return bpf_map_lookup_elem(&bench_lpm, &key) != 0;
}

/* The seed is whatever the control plane takes it from, too. */
volatile const __u8 bench_xxh64 = 0; /* 1: instead of weir's hash */

/* A set of IPv6 addresses alone, by one hash or another. */
static __always_inline int lookup_v6(struct packet *p)
{
	struct set_maps maps = BLOCK_MAPS(open_block, confirm_block, 0);
	struct key k = key_v6(&block.v6[0], p);
	__u64 h = bench_xxh64 ? xxh64_20(key_secret.offsets[0][0], k.w[0], k.w[1], k.w[2])
			      : key_hash(KEY_V6, k, &key_secret);

	p->list = LIST_NONE;
	set_probe(&block, maps, p, h);
	return p->list != LIST_NONE;
}

SEC("xdp.frags")
int wire_drop(struct xdp_md *ctx)
{
	return wire(ctx, lookup_none);
}

SEC("xdp.frags")
int wire_hash(struct xdp_md *ctx)
{
	return wire(ctx, lookup_hash);
}

SEC("xdp.frags")
int wire_bloom(struct xdp_md *ctx)
{
	return wire(ctx, lookup_bloom);
}

SEC("xdp.frags")
int wire_lpm(struct xdp_md *ctx)
{
	return wire(ctx, lookup_lpm);
}

SEC("xdp.frags")
int wire_v6(struct xdp_md *ctx)
{
	return wire(ctx, lookup_v6);
}

/* On weir's lean path: the least that it could cost. */
SEC("xdp.frags")
int wire_line(struct xdp_md *ctx)
{
	struct cpu_row *row;
	void *pos = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct plain p = {.len = end - pos};

	if (pos + ETHERNET_HEADER + IPV4_HEADER + MIN_TRANSPORT > end || is_paged(ctx, p.len) ||
	    word_at(pos, ETHERTYPE_OFFSET) != bpf_htonl(ETH_P_IP << 16 | 0x4500) ||
	    !parse_lean_v4(pos, &p))
		return XDP_ABORTED;
	row = this_row();
	if (!row)
		return XDP_ABORTED;
	count_reason(row, line_read(src_of(&p, 0)) ? REASON_BLOCKED : REASON_CLEAN, p.len);
	return XDP_DROP;
}

/*
 * What the program of the whole pipeline does to a frame before. Test runs without
 * live frames do not restore it.
 */
enum prelude {
	PRELUDE_NONE,
	PRELUDE_VISIT,	 /* empty the loop filter, so that each run is a first visit */
	PRELUDE_STAMP,	 /* make it another packet, by a number in the IP payload */
	PRELUDE_FORWARD, /* restore the hops, which multicast forwarding decrements */
};

volatile const __u8 bench_prelude = PRELUDE_NONE;
__u32 bench_filter = 0; /* offset of the loop filter in the frame */

/* Returns whether the frame is long enough. */
static __always_inline int prepare_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u8 *ip = (__u8 *)(eth + 1);
	int v4;

	if (bench_prelude == PRELUDE_VISIT) {
		__u64 *filter = data + (bench_filter & 127);

		if ((void *)(filter + LOOP_WORDS) > end)
			return 0;
		for (int i = 0; i < LOOP_WORDS; i++)
			filter[i] = 0;
		return 1;
	}
	if (data + 64 > end)
		return 0;
	v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (bench_prelude == PRELUDE_FORWARD)
		ip[v4 ? 8 : 7] = 64;
	else
		*(__u32 *)(ip + (v4 ? 20 : 40) + 4) = bench_loop.at++;
	return 1;
}

SEC("xdp.frags")
int wire_weir(struct xdp_md *ctx)
{
	int action;

	if (bench_prelude && !prepare_frame(ctx))
		return XDP_ABORTED;
	action = process(ctx);
	return bench_prelude == PRELUDE_FORWARD ? action : XDP_DROP;
}

/*
 * The generator, for test runs with live frames: sets the IPv4 source of the
 * frame, which may have one VLAN tag, or the last word of the IPv6 source, to the next
 * key and sends it out of an interface.
 */
#define VLAN_TAG 4
__u32 bench_ifindex = 0;

/* The sum of a word's halves, for the Internet checksum. */
static __always_inline __u32 halves(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

/* The checksum of a header of which one word changes (RFC 1624, equation 3). */
static __always_inline __u16 adjusted(__u16 sum, __u32 from, __u32 to)
{
	return ~halves(halves((__u16)~sum + halves(~from) + halves(to)));
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip = (void *)(eth + 1);
	__u32 key;

	if ((void *)(ip6 + 1) > end)
		return XDP_ABORTED;
	key = next_key(&bench_loop);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		ip6->saddr.in6_u.u6_addr32[3] = key;
		return bpf_redirect(bench_ifindex, 0);
	}
	if (eth->h_proto == bpf_htons(ETH_P_8021Q))
		ip = (void *)(eth + 1) + VLAN_TAG;
	ip->check = adjusted(ip->check, ip->saddr, key); /* or the stack drops it */
	ip->saddr = key;
	return bpf_redirect(bench_ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

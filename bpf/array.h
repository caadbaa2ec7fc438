/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Array maps that the control plane maps into its memory. It sets their number of
 * entries before it creates them.
 */
#ifndef WEIR_ARRAY_H
#define WEIR_ARRAY_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define ARRAY(name, value_type)                    \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, value_type);         \
	} name SEC(".maps")

/*
 * Of maps that outlive the programs of an interface: the loader pins them with these, and the
 * next programs count on in them.
 */
#define KEPT __attribute__((btf_decl_tag("kept")))

#define KEPT_ARRAY(name, value_type) ARRAY(name, value_type) KEPT

/*
 * An array of which the program takes addresses. The loader makes a map of it whose only
 * value is all entries, where the kernel accepts a value of this size: that takes a
 * comparison, where a lookup takes a key on the stack, a call and a test for null.
 * NAME_whole stands for the address of the value; the loader replaces it. NAME_entries is
 * how many entries it has; 0: the map has as many values as entries.
 *
 * For what every packet needs. The verifier walks loops with such arrays several times as
 * long.
 */
#define ADDRESSED_ARRAY(name, value_type) \
	ARRAY(name, value_type);          \
	ADDRESS_OF(name)

#define KEPT_ADDRESSED_ARRAY(name, value_type) \
	KEPT_ARRAY(name, value_type);          \
	ADDRESS_OF(name)

#define ADDRESS_OF(name)                      \
	char name##_whole SEC(".data.whole"); \
	volatile const __u32 name##_entries = 0

struct array {
	void *map;
	char *whole;
	const volatile __u32 *entries;
};

#define ARRAY_OF(name) ((struct array){&name, &name##_whole, &name##_entries})

/* The entry with this index, or null. */
static __always_inline void *entry_at(struct array a, __u64 index, __u32 size)
{
	if (*a.entries) {
		/* The verifier must see the comparison of just what the address is made of. */
		asm volatile("" : "+r"(index));
		if (index >= *a.entries)
			return 0;
		/* The compiler must not know how little lies there in the object. */
		asm volatile("" : "+r"(a.whole));
		return a.whole + index * size;
	} else {
		__u32 key = index;

		return bpf_map_lookup_elem(a.map, &key);
	}
}

/*
 * The same where all entries are one value. The entry has the given number of others behind it,
 * whose addresses the program may derive from its own.
 */
static __always_inline void *entries_at(struct array a, __u64 index, __u32 others, __u32 size)
{
	asm volatile("" : "+r"(index));
	if (index >= *a.entries - others)
		return 0;
	asm volatile("" : "+r"(a.whole));
	return a.whole + index * size;
}

/* The same of an array by its name. */
#define AT(name, index) \
	((typeof((name).value))entry_at(ARRAY_OF(name), index, sizeof(*(name).value)))
#define AT_WITH(name, index, others) \
	((typeof((name).value))entries_at(ARRAY_OF(name), index, others, sizeof(*(name).value)))

#endif

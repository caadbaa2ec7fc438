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

#endif

// Package bpf has weir's data plane: its C, the compiled objects for both byte
// orders, and the Go types generated from them.
//
// weir.bpf.c is the entry for XDP and weir_tc.bpf.c that for TC, pipeline.h the verdict
// pipeline; each concept has a header. The objects are committed, so that building weir
// needs only Go; `make generate` compiles them again.
package bpf

// Reproducible: the Makefile pins the tool chain (CLANG, STRIP), and the types
// that Go shares are named one by one.
//
//go:generate go tool bpf2go -tags linux -target bpfel,bpfeb -no-global-types -type secret -type shape -type key_set -type quotient -type directory -type prefix_length -type failsafe_port -type failsafe_prefix -type failsafe -type counter -type cpu_row -type line -type bucket -type reason -type rule_layout -type loop_config -type loop_outcome -type loop_row -type tracker -type tracker_head -type tracker_state -type packet -type event -type sampling -type flow_bucket -type penalty_bucket -type threshold -type window_bucket -type multicast_filters -type multicast_port -type multicast_row -type policer_config -type policer_bin -type policer_slice -type policer_state -type policer_cpu -type policer_outcome -type policer_controller -type first_config -type first_state -type first_cpu -type reply_config -type connection -type connection_state -type partner -type conversation -type ethertype_row -type tunnel -type inner_row -type digests -type digest_bank -type digest_state -type sighting Weir weir.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go tool bpf2go -tags linux -target bpfel,bpfeb -no-global-types WeirTC weir_tc.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go run ./compress . el eb

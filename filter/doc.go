// Package filter is the map of the packages below it: one data structure each,
// in pure Go, without I/O. It contains no code itself.
//
// # Vocabulary
//
// The same operation has the same name in all packages:
//
//   - Add adds an element, Remove removes it and reports whether it was there, Contains reports
//     whether it may be there, Lookup returns its value, and Observe adds it and reports whether
//     it was there before. Count and Estimate return how often an element was added.
//   - Elements are byte strings in bloom, counting, weighted, attenuated and reconcile, where
//     AddHash and so on take their 64-bit hashes; they are hashes in blocked, cascade, cuckoo,
//     bloomier, invertible, recent, sketch and stable, to be computed once for several structures
//     (hash.Sum, hash.Secret); keys of packets in membership, and numbers in quotient.
//   - For returns the geometry for a number of elements and a false-positive rate, and New an empty
//     structure; FromWords and Over take memory that is there, as that of the kernel.
//   - FalsePositiveRate predicts, FillRatio measures.
//   - AppendBinary and UnmarshalBinary encode and decode, with a magic, a version and a checksum.
//     A decoder takes memory in proportion to its input, whatever that claims, and what it refuses
//     changes nothing. The sets of membership and quotient have no encoding: their keys are saved
//     (snapshot), and a set is built from them under another secret.
//
// Unless a comment says otherwise, queries may run concurrently, and changes beside nothing else.
//
// # Data plane
//
// Bit-exact twins of the C under bpf/, each tested against it. They work on
// kernel memory as well as on the heap; the control plane builds and reads the
// kernel's maps with them.
//
//   - [weir/filter/blocked] implements Bloom filters in which all bits of an
//     element lie in one cache line: Putze, Sanders and Singler, "Cache-, hash-
//     and space-efficient Bloom filters", 2007 (bpf/cascade.h).
//   - [weir/filter/cascade] implements the blocked Bloom filter that sets of
//     listed keys begin with (bpf/cascade.h).
//   - [weir/filter/conntrack] remembers connections of this host, and with whom
//     it has conversed (bpf/replies.h, bpf/collateral.h).
//   - [weir/filter/cuckoo] implements a hash table of fingerprints, each with a
//     number, after Fan, Andersen, Kaminsky and Mitzenmacher, "Cuckoo filter:
//     practically better than Bloom", 2014 (bpf/table.h).
//   - [weir/filter/digest] records the packets that passed, to answer whether
//     and when a given packet did: the Source Path Isolation Engine (SPIE) of
//     Snoeren and others ("Hash-based IP traceback", SIGCOMM 2001; Broder and
//     Mitzenmacher's survey, section 8.2) (bpf/digest.h).
//   - [weir/filter/hash] has the hash functions of weir's filters: Secret,
//     whose collisions are bounded for keys chosen without it, XXH64 with a
//     seed, and the values derived from their 64 bits (bpf/universal.h,
//     bpf/hash.h).
//   - [weir/filter/icarus] detects packets in routing loops with a small Bloom
//     filter that every packet carries (Whitaker and Wetherall, "Forwarding
//     without loops in Icarus", 2002; Broder and Mitzenmacher's survey, section
//     7.1) (bpf/loop.h).
//   - [weir/filter/invariant] extracts the parts of a packet that forwarding
//     does not change, so that several nodes recognise it (bpf/invariant.h).
//   - [weir/filter/key] defines what weir can list: an exact match on a shape
//     of a packet's addresses, ports and protocol (bpf/key.h).
//   - [weir/filter/membership] implements the set of listed keys: markers, the
//     cascade, the weights of hot elements and the fingerprint table, combined
//     for all shapes in use (bpf/set.h, bpf/marker.h, bpf/hot.h).
//   - [weir/filter/multicast] implements multicast forwarding with Bloom
//     filters, as in Broder and Mitzenmacher's survey (section 7.3, after
//     Grönvall): instead of a list of interfaces for each group, each
//     interface has a Bloom filter of the groups that it wants, and gets a copy
//     of each packet whose group its filter contains (bpf/multicast.h).
//   - [weir/filter/newflow] counts the flows that packets begin, and chooses
//     those that have an event (bpf/first.h).
//   - [weir/filter/packet] parses frames exactly as the data plane does:
//     Ethernet with VLAN tags, PPPoE sessions, MPLS label stacks, IPv4 with
//     options and fragments, IPv6 with extension headers, TCP, UDP, UDP-Lite,
//     SCTP, DCCP, ICMP (bpf/parse.h).
//   - [weir/filter/penalty] implements rate limits and blocks for single flows,
//     each with an expiry (bpf/penalty.h, bpf/threshold.h).
//   - [weir/filter/quotient] is an exact set of keys of 32 to 34 bits with list
//     numbers, in 2 to 6 bytes an entry: of IPv4 addresses, and prefixes of all
//     lengths (bpf/quotient.h).
//   - [weir/filter/recent] remembers the items of the recent past of an endless
//     stream (bpf/first.h).
//   - [weir/filter/sfb] implements Stochastic Fair Blue queue management (Feng,
//     Kandlur, Saha and Shin, INFOCOM 2001; Broder and Mitzenmacher's survey,
//     section 7.2), with the details and defaults of Linux's sch_sfb
//     (bpf/police.h).
//   - [weir/filter/sketch] counts the traffic of every flow in memory that does
//     not grow with the number of flows, and finds the heavy hitters
//     (bpf/tracker.h).
//   - [weir/filter/verdict] is the reference implementation of the data plane's
//     decision on a frame: bpf/pipeline.h is tested against it, and it is the
//     Go engine of `weir replay` (bpf/pipeline.h).
//
// # Control plane
//
// Used by the daemon or by a command, without a counterpart in the kernel.
//
//   - [weir/filter/bloom] implements the standard and the partitioned Bloom
//     filter, set operations on their bits, and estimates from them.
//   - [weir/filter/compress] implements compressed Bloom filters: sparse
//     filters, with more bits and fewer hash functions than are optimal in
//     memory, that are entropy-coded for transmission.
//   - [weir/filter/counting] implements Bloom filters whose cells are counters:
//     the counting filter, which supports deletion, and the spectral filters,
//     which estimate how often an element was added.
//   - [weir/filter/flood] finds in samples of packets what a flood consists of,
//     and the smallest rules that match it and little else.
//   - [weir/filter/fpr] computes false-positive rates: of the standard Bloom
//     filter by every formula in use, right and wrong, and of the blocked
//     layouts that keep a key's bits in one cache line.
//   - [weir/filter/invertible] implements invertible Bloom lookup tables
//     (Goodrich and Mitzenmacher, 2011): Bloom filters whose cells are sums, so
//     that the elements of a small set can be listed.
//   - [weir/filter/ordered] sorts a few values of any type.
//   - [weir/filter/prefix] chooses the prefix lengths at which a set of CIDR
//     entries is stored.
//   - [weir/filter/snapshot] encodes sets of keys exactly and compactly, to
//     send them to other hosts: whole, or as the difference of two versions.
//   - [weir/filter/stable] detects duplicates in endless streams in constant
//     memory, by forgetting.
//   - [weir/filter/weighted] implements the weighted Bloom filter of Bruck, Gao
//     and Jiang: the number of hash functions k_e differs from element to
//     element, more for those that are queried often and are unlikely members,
//     to minimise the false-positive rate of the queries rather than that of
//     the elements.
//
// # Papers
//
// Applications from Broder and Mitzenmacher, "Network applications of Bloom
// filters: a survey", 2004, and others, for use as libraries. In weir only
// docs/papers uses them.
//
//   - [weir/filter/attenuated] implements resource routing with Bloom filters:
//     attenuated Bloom filters, with which each router of an overlay network
//     records what it can reach over each of its links and in how many hops, a
//     tree in which each node records what its subtree contains, and a grid of
//     squares with mobile hosts.
//   - [weir/filter/bloomier] implements the Bloomier filter of Chazelle,
//     Kilian, Rubinfeld and Tal (The Bloomier filter: an efficient data
//     structure for static support lookup tables, 2004; Broder and
//     Mitzenmacher's survey, section 9): a fixed map in a few bits an element,
//     which returns the right value for each of its keys, and for another key
//     either that it is absent or, with a known probability, any value.
//   - [weir/filter/reconcile] synchronises sets between parties that exchange
//     Bloom filters: the approximate difference and intersection of two sets,
//     joins of relations, and summary caches, which replicate a changing
//     filter; and differential files.
package filter

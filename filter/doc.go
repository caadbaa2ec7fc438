// Package filter is the map of the packages below it: one data structure each,
// in pure Go, without I/O. It contains no code itself.
//
// # Data plane
//
// Bit-exact twins of the C under bpf/, each tested against it. They work on
// kernel memory as well as on the heap; the control plane builds and reads the
// kernel's maps with them.
//
//   - [weir/filter/hash]: a keyed hash with a bound on collisions, XXH64, and what is
//     derived from their 64 bits (bpf/universal.h, bpf/hash.h).
//   - [weir/filter/packet]: the parser (bpf/parse.h).
//   - [weir/filter/key]: shapes and keys for tuple space search. Srinivasan,
//     Suri and Varghese, "Packet classification using tuple space search",
//     1999 (bpf/key.h).
//   - [weir/filter/membership]: the set of listed keys: markers, the cascade, the
//     weights of hot elements, and a table of fingerprints (bpf/set.h, bpf/marker.h,
//     bpf/hot.h).
//   - [weir/filter/cascade]: a blocked Bloom filter, a key's bits in one line or more.
//     Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2007
//     (bpf/cascade.h).
//   - [weir/filter/cuckoo]: a cuckoo hash table of fingerprints. Fan, Andersen, Kaminsky
//     and Mitzenmacher, "Cuckoo filter: practically better than Bloom", 2014 (bpf/table.h).
//   - [weir/filter/blocked]: a blocked Bloom filter in which an element has one cache
//     line, of recent flows, of the pairs that guards count, and of digests (bpf/cascade.h).
//   - [weir/filter/quotient]: the exact set of IPv4 addresses and prefixes, in 2 to
//     6 bytes an entry, by quotienting. Knuth, "The art of computer programming",
//     volume 3, 1973; Cleary, "Compact hash tables using bidirectional linear
//     probing", 1984 (bpf/quotient.h).
//   - [weir/filter/sketch]: heavy hitters: multistage filter, conservative
//     update and flow memory. Estan and Varghese, "New directions in traffic
//     measurement and accounting", 2002; Cormode and Muthukrishnan, "An improved
//     data stream summary", 2005 (bpf/tracker.h).
//   - [weir/filter/sfb]: policing and queue management. Feng, Kandlur, Saha and Shin,
//     "Stochastic fair blue", 2001; Pan, Breslau, Prabhakar and Shenker, "Approximate
//     fairness through differential dropping", 2003 (bpf/police.h).
//   - [weir/filter/recent]: the flows of the recent past. Chang, Feng and Li,
//     "Approximate caches for packet classification", 2004 (bpf/first.h).
//   - [weir/filter/newflow]: the flows that were not seen lately, counted, and those of
//     them that have an event (bpf/first.h).
//   - [weir/filter/penalty]: rate limits and blocks of single flows by the
//     generic cell rate algorithm, ITU-T I.371 (bpf/penalty.h).
//   - [weir/filter/icarus]: loop detection. Whitaker and Wetherall, "Forwarding
//     without loops in Icarus", 2002 (bpf/loop.h).
//   - [weir/filter/invariant]: the parts of a packet that forwarding does not change
//     (bpf/invariant.h).
//   - [weir/filter/digest]: packet digests for traceback. Snoeren et al.,
//     "Hash-based IP traceback", 2001 (bpf/digest.h).
//   - [weir/filter/multicast]: multicast forwarding with a Bloom filter for each
//     port, after Grönvall (bpf/multicast.h).
//   - [weir/filter/conntrack]: connections that this host opens, and with whom it has
//     conversed (bpf/replies.h, bpf/collateral.h).
//   - [weir/filter/verdict]: the decision on a frame, for which it asks the others
//     (bpf/pipeline.h).
//
// # Control plane
//
// Used by the daemon or by a command, without a counterpart in the kernel.
//
//   - [weir/filter/counting]: counters that make deletion possible, spectral and
//     space-code filters. Fan, Cao, Almeida and Broder, "Summary cache", 2000; Cohen
//     and Matias, "Spectral Bloom filters", 2003; Kumar, Xu, Li and Wang, "Space-code
//     Bloom filter for efficient traffic flow measurement", 2003.
//   - [weir/filter/invertible]: tables from which the difference of two sets is listed.
//     Goodrich and Mitzenmacher, "Invertible Bloom lookup tables", 2011.
//   - [weir/filter/prefix]: the prefix lengths to store. Srinivasan and Varghese,
//     "Fast address lookups using controlled prefix expansion", 1999.
//   - [weir/filter/fpr]: false-positive rates, exact and classic. Christensen,
//     Roginsky and Jimeno, "A new analysis of the false positive rate of a Bloom
//     filter", 2010.
//   - [weir/filter/weighted]: how many bits each element gets. Bruck, Gao and
//     Jiang, "Weighted Bloom filter", 2006.
//   - [weir/filter/bloom]: the standard and the partitioned filter. Bloom,
//     "Space/time trade-offs in hash coding with allowable errors", 1970.
//   - [weir/filter/compress]: filters compressed for transmission. Mitzenmacher,
//     "Compressed Bloom filters", 2002.
//   - [weir/filter/stable]: duplicates in endless streams. Deng and Rafiei,
//     "Approximately detecting duplicates for streaming data using stable Bloom
//     filters", 2006; Boraskar, Gabale, Kulkarni and Kulkarni,
//     "Importance-aware Bloom filter", 2013.
//   - [weir/filter/snapshot]: exact sets and their differences as bytes, 1.28 an entry
//     for ten million IPv4 addresses.
//   - [weir/filter/ordered]: sorting that is compiled once for all types, which is smaller
//
// # Papers
//
// Applications from Broder and Mitzenmacher, "Network applications of Bloom
// filters: a survey", 2004, and others, for use as libraries. In weir only
// docs/papers uses them.
//
//   - [weir/filter/attenuated]: resource and geographic routing. Rhea and
//     Kubiatowicz, "Probabilistic location and routing", 2002; Czerwinski et al., "An
//     architecture for a secure service discovery service", 1999; Hsiao, "Geographical
//     region summary service for geographical routing", 2001.
//   - [weir/filter/bloomier]: fixed maps. Chazelle, Kilian, Rubinfeld and Tal, "The
//     Bloomier filter", 2004.
//   - [weir/filter/reconcile]: set difference, summary caches, semijoins and
//     differential files. Byers, Considine, Mitzenmacher and Rost, "Informed content
//     delivery across adaptive overlay networks", 2002; Byers, Considine and
//     Mitzenmacher, "Fast approximate reconciliation of set differences", 2002; Fan et
//     al., "Summary cache", 2000; Mullin, "Optimal semijoins for distributed database
//     systems", 1990; Gremillion, "Designing a Bloom filter for differential file
//     access", 1982.
package filter

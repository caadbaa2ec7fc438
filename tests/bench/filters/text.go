package main

const introduction = `
` + "`make bench-filters`" + ` writes this page: weir's filters and sketches beside younger ones, at one
rate, in one memory, on one stream of packets. weir's own are **bold**. The others are libraries
where Go has good ones, or else short code in ` + "`tests/bench/filters`" + `, which is tested against
maps. All figures follow from seeds, and a test compares the page with the sources; only times are of
one machine, in a part of their own at the end. No filter ever missed a key of its set.`

const atOneRateText = `
100,000 random IPv4 addresses, and a rate of false positives of 2⁻⁸, 0.39 %%, or the nearest that a
filter has. *Of the least* divides the bits by the lower bound, log₂ of 1/rate. The rate is counted
over 2,000,000 absent keys. Lines of 64 bytes are counted as look-ups read them; of xor and binary fuse
filters, and of the exact table, by design. Exact sets have no rate to choose, and say which list
has a key.`

const filtersVerdict = `
What weir's choice loses:

- **A quarter of the bits.** A ribbon filter takes 28 %% less than the cascade, a binary fuse
  filter 19 %%, an xor filter 16 %%. They are built from all keys at once: to change one entry is to hash
  the whole list again, with a second filter in the kernel meanwhile. weir changes thousands of entries
  a second in place, between two packets. For a list that is only replaced as a whole, once a day,
  a binary fuse filter would be the better choice, if a packet may read three lines.
- **The daemon's counters.** Cuckoo and vector quotient filters take what the cascade takes, and
  delete without the four bits of counter that the daemon has for each bit, 5.9 bytes an entry here.
  But both read two lines for an absent key, as most packets are, where the cascade reads 1.03. And
  they move fingerprints that share words with others, the vector quotient filter those of half a
  line at once: a packet that is looked up meanwhile would miss a listed key, unless the program took
  a lock or read a version before and after. A bit that is set needs one atomic store, and nothing moves.
- **The second line of a listed key.** The prefix filter takes as many bits as the cascade and reads
  little more than one line for any key: the best filter here for entries that are only added. It cannot
  delete, and moves fingerprints likewise.
- **Nothing by blocks**: the standard Bloom filter, two to eight lines, takes 1 to 2 %% fewer bits. A counting
  filter that packets read would take four times as many.

- **Time, perhaps.** In the loop of [times](#times) xor and binary fuse filters are the fastest, with
  three lines: their reads do not wait for one another, and nothing depends on what they find.
  That says little of single packets in the kernel, where this was not measured.

Where mistakes are not acceptable, the quotient set of IPv4 takes 30 bits an entry here (22 with ten million
entries), as much as the cascade for a rate of 10⁻⁶. For IPv6 and flows exact mode takes 83 bits, seven
times the cascade: [approximate mode](approximate.md) is for these.`

const inOneMemoryText = `
The best that each filter has in 12 and in 20 bits an entry. The library's xor filter has fingerprints of
8 bits, its binary fuse filter of 8, 16 and 32; the vector quotient filter has 8 and 16 bits, and the
prefix filter 8, as published. Exact sets are larger. Rates below 0.001 %% are counted over too few
false positives to compare.`

const inOneMemoryVerdict = `
The more bits, the more weir's choice loses. At 12 bits cuckoo and vector quotient filters are no better
than the cascade, and a ribbon filter lets through a seventh. At 20 bits those two let through a third
and a quarter as much as the cascade, and delete; binary fuse and ribbon filters let through a sixth
and a twentieth or less. Each halving of the rate costs a Bloom filter 1.44 bits, and
fingerprints one. So up to some 12 bits an entry nothing that changes in place is better, and above
it fingerprints are, also at the 16 bits that weir has by default: it has fingerprints in exact mode
only.`

const sketchesText = `
A flow is heavy from 0.02 %% of all packets on. The memory is all that a sketch has, but for the
indexes by which count-min, SpaceSaving and HeavyKeeper find a flow that they can name: those are not
counted. In weir a flow that can be named takes %d bytes, which the kernel reports and limits by: the
key of an IPv6 flow, packets, bytes and a hash. Others are shown with slots of that size, too, and with
%d bytes, as they are published: 8 of key and 8 of count. The error is the mean relative error of the
heavy hitters that are found. By default, weir has 128 KiB for each CPU and interval.`

const sketchesVerdict = `
What weir's choice loses:

- **Large slots.** With slots of 16 bytes others find more flows in little memory: HeavyKeeper is
  the best in 16 KiB, and SpaceSaving finds in 64 KiB what takes weir 128. weir loses this by its
  slots, not by its sketch: among sketches with slots of the same size it is the best, or up to 0.03
  of F1 behind.
- **The order of a heap.** Count-min with the same conservative update and a heap of the highest flows
  is better on the capture in 64 KiB: weir has its slots in buckets of eight, and admits flows from
  half of the threshold on, so that lighter flows take some. A heap moves entries with each packet, and
  so do the linked lists of SpaceSaving: more than a program should do in the kernel for a packet.

Why weir keeps it: a block or a limit by count must hold no one below it. weir's says how many
packets a flow has had at least, and at most, and no flow is missed while ` + "`denied_packets`" + ` is 0.
HeavyKeeper counts too little by chance, CocoSketch too little or too much, and SpaceSaving
adds the count of another flow to a new one. In its default memory weir finds practically everything on both
streams.`

const learningText = `
40,000 listed addresses, 120,000 sources that are not listed, with shares of the packets by Zipf's
distribution, and 10 bits an entry *for everything*: also for the hot table, for four bits for each of
2,048 networks, for layers of known sources. Each filter sees 400,000 packets, chooses its sizes by the
rate that it predicts, and is then asked for all sources. The figures are shares of packets that are
dropped by mistake, on average over 20 lists. With an exponent of 1.4 a third of the packets has one
source: whether that one is hit decides what is counted of filters that do not know it.`

const learningVerdict = `
What weir's choice loses:

- **Its hot table loses to stacked filters here**: an element that the cascade passes takes 20 bytes,
  as many as 16 entries, and 40,000 of those leave room for few. With an exponent of 1.4 the difference is
  a fifth. A table of all hot sources, the row above weir's, lets two to five times as many through:
  ninety-nine of a hundred do not pass the cascade, and need no more bits. With a million entries and
  more [the table has room](benchmarks.md#heavy-hitters-and-weights) for nearly all that host and list
  have in common, and there is little left to win.
- **Classes beat elements where networks differ**, in a list as small as this one. Theorem 3.1, with a
  number of bits for each network, in 1 KiB, drops 12, 4 and 1.5 times fewer than weir's table as
  counted. Where networks do not differ it drops 1.5, 2.4 and 3 times more. Ada-BF, its modern form with
  groups of scores, is as good and no better. So weir has [classes of networks](approximate.md#bits-by-network) too,
  beside its table; the row above is of the table alone.

Stacked filters stay out of the kernel for another reason: an entry that is added must be entered into
the third layer whenever the second has it, and to delete takes counters for two layers. But the
second layer can be rebuilt alone as traffic changes, and only packets that pass the first ask for it.`

const timesText = `
At a rate of 2⁻⁸, in Go, in one process: not in the kernel. Building takes the time of all CPUs
together, from keys in random order; a look-up is one of a million in a loop, and of pieces of them the
fastest of three counts. The vector quotient and the prefix filter are made for vector instructions,
which Go lacks, as programs in the kernel do.`

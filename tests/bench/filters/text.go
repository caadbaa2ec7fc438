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
  filter of counters alone, as published, takes four times as many: its row. In weir a bit is beside each
  counter, so that look-ups read what those of a Bloom filter do.

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
  of F1 behind, in 16 KiB 0.07.
- **The error field of SpaceSaving.** With it, and flows judged by count − error, as libraries do, SpaceSaving
  names no flow wrongly: on the capture it is almost as good as weir in 64 KiB, and better by 0.006 of F1 in 128;
  by Zipf's distribution it finds 0.79 of the heavy hitters in 128 KiB, where weir finds all. Judged by the count
  alone it names four flows wrongly there for each right one.
- **The order of a heap.** Count-min with the same conservative update and a heap of the highest flows
  is better on the capture in 64 KiB: weir has its slots in buckets of eight, and admits flows from
  half of the threshold on, so that lighter flows take some. A heap moves entries with each packet, and
  so do the linked lists of SpaceSaving: more than a program should do in the kernel for a packet.

- **The cold filter.** From 128 KiB on, it takes half of the sketch's memory, and 0.003 or 0.004 of F1
  at 128 KiB. For it, a packet that it counts costs a tracker 41 instructions instead of 233.

Why weir keeps it: a block or a limit by count must hold no one below it. weir's says how many
packets a flow has had at least, and at most, and no flow is missed while ` + "`denied_packets`" + ` is 0.
HeavyKeeper counts too little by chance, CocoSketch too little or too much. SpaceSaving has both bounds, as
weir, but each packet of a new flow takes the place of another one. In its default memory weir finds practically everything on both
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

const mendingText = `
A false positive that is reported to the filter should not be one again. 100,000 keys in 12 bits each *for all
that look-ups read*. The first column has 400,000 queries for 120,000 absent keys by Zipf's distribution; the
others are an adversary's, who has found so many false positives and asks for each of them a hundred times, in
turns. Every mistake is reported at once: the figures are shares of queries, and 1 %% is once for each.`

const mendingVerdict = `
What weir's choice loses:

- **An adversary with more false positives than the table has slots.** The hot table mends as many elements as
  it has room for, and an adversary who finds more is wrong for ever with the rest. The adaptive cuckoo
  filter mends in place, without any table: nearly each mistake is made once, however many there are, and by
  Zipf's distribution the two are equal. A larger table only moves the limit, and costs rate.
- **Proofs.** The broom filter, the telescoping filters and the adaptive quotient filter bound the mistakes of any
  adversary by the rate times its queries, with a few bits an entry more. Of these Go has no library.

Why weir keeps it: adaptive filters change fingerprints of *listed* keys, from the keys themselves, while packets
look them up. In the kernel a listed key would test negative for a moment, unless each look-up took a lock or
read a version. A slot of the hot table is one store, which no listed key depends on. The entries displaced are those with
the fewest mistakes, so that a flood of new elements does not undo what was mended for those that err most.`

const growthText = `
A set that doubles seven times, from 1,600 keys on, at a wanted rate of 2⁻⁸. InfiniFilter's fingerprints give a bit
to the table at each doubling, and new ones are whole; its slots have nine bits of fingerprint, one that ends it,
and three of a quotient filter, 0.8 of them full. Sizes are shown where it is full. Bits at most are for the final number of keys,
with the old memory beside the new one.`

const growthVerdict = `
What weir's choice loses: **it needs the keys**, all of them, at each doubling, and their hashes anew: InfiniFilter and
Aleph (Dayan, Bercea, Pagh, VLDB 2024, which also bounds the time of look-ups and deletions) grow from what they
have. Mistakes differ in each new filter of weir, too; in one that grows they stay the same. But weir has the keys in any
case, since lists are reloaded; and those who grow pay: InfiniFilter 1.4 times the bits here, with a rate that rises with each
doubling, a scalable Bloom filter 1.8 times, in a filter more to ask with each doubling.`

const windowsText = `
A flow has a burst of one to two thresholds, 200 to 400 packets, anywhere in a stream of two million packets by Zipf's
distribution, and all of it within a hundredth, a half or a whole of a window of 100,000 packets. How many of 400 bursts
that reach the threshold within some window does a detector find? Precision is of all flows that it names.`

const windowsVerdict = `
What weir's choice loses: **bursts across the border of an interval**, which are counted in two halves. Of those that
last half a window it finds three quarters, of those that last a whole one a little more than half; a burst that is short
beside the interval is practically never cut. Two rows of intervals find all bursts of half a window, for twice the memory
and the time of two trackers. A window that slides finds all, in half of the memory, since it names flows by 8 bytes, and it names
one flow too many in fourteen: it counts up to four blocks too much. Where a limit or a block follows, weir must
not do that, and the blocks that go would have to be taken from the counts by packets themselves.`

package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/journal"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// address is the i-th of different addresses without a pattern, each in the
// network /8 of its block.
func address(block byte, i int) netip.Addr {
	n := uint32(i) * 0x9e3779b1 // odd: no two are alike in their lower 24 bits
	return netip.AddrFrom4([4]byte{block, byte(n >> 16), byte(n >> 8), byte(n)})
}

func addresses(block byte, from, n int) (all []netip.Addr) {
	for i := range n {
		all = append(all, address(block, from+i))
	}
	return all
}

func lines(all []netip.Addr) []string {
	var text []string
	for _, a := range all {
		text = append(text, a.String())
	}
	return text
}

// The address blocks of listed and of unlisted traffic.
const (
	feedBlock    = 20
	commandBlock = 30
	cleanBlock   = 40
	passingBlock = 50
)

// feed writes a feed with the given number of entries, and returns the
// configuration of its list.
func (h *host) feed(entries int) string {
	h.t.Helper()
	path := h.write("feed.txt", []byte(strings.Join(lines(addresses(feedBlock, 0, entries)), "\n")))
	return fmt.Sprintf("sources: [{file: %s}], interval: 24h", path)
}

// flood returns traffic from listed and unlisted sources, some of them adjacent
// to the feed's.
func (h *host) flood() *traffic {
	h.t.Helper()
	clean := froms(addresses(cleanBlock, 0, 500)...)
	for _, a := range addresses(feedBlock, 1<<20, 500) { // which the feed does not have
		clean = append(clean, from(a))
	}
	return startTraffic(h.t, h.Lab, froms(addresses(feedBlock, 0, 1000)...), clean)
}

// The contents of a list's file change at random, but for entries that are always listed. They
// are active when the reload returns, and what is always listed is blocked all the time.
func TestReloadsOfContents(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	random := seed.New(t)
	always, others := addresses(feedBlock, 0, 1000), addresses(feedBlock, 2000, 5000)
	next := func() (in, out netip.Addr) {
		random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		listed := 1 + random.IntN(len(others)-1)
		all := slices.Concat(always, others[:listed])
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		h.write("feed.txt", []byte(strings.Join(lines(all), "\n")))
		return others[listed-1], others[listed]
	}
	next()
	h.configure(h.B.Iface, "lists: {always: {sources: [{file: %s}], interval: 24h}}\n", h.path("feed.txt"))
	load := h.flood()
	d := h.start(releases[0])
	h.settled("always")
	load.run()
	for round := range long.Rounds(12, 40, 100) {
		in, out := next()
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		load.expect(fmt.Sprintf("reload %d, what is listed", round), false, from(in))
		load.expect(fmt.Sprintf("reload %d, what is not", round), true, from(out))
	}
	load.finish()
	d.complain("feed failed") // the file was replaced while its watcher read it
}

// The configuration changes repeatedly: lists, directions, allow lists,
// failsafe, trackers. It is active when the reload returns, and entries that
// are always listed are blocked all the time.
func TestReloads(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	feed := h.feed(20_000)
	extra := h.write("extra.txt", []byte("203.0.113.77\n203.0.113.78\n"))
	blocked, pardoned := from(netip.MustParseAddr("203.0.113.77")), from(netip.MustParseAddr("203.0.113.78"))
	toward := key.Tuple{Src: netip.MustParseAddr("198.51.100.1"), Dst: blocked.Src, Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 9}
	ssh := from(address(feedBlock, 0))
	ssh.Proto, ssh.DstPort = 6, 22
	tracks := 0
	configure := func(round int) (check func(*traffic)) {
		has := func(every int) bool { return round%every == 0 }
		lists := "always: {" + feed + ", priority: " + fmt.Sprint(round%3) + "}\n"
		direction := []string{"src", "dst", "both"}[round%3]
		if has(2) {
			lists += "  extra: {sources: [{file: " + extra + "}], direction: " + direction + "}\n"
		}
		if has(4) {
			lists += "  pardon: {action: allow, sources: [{file: " + h.write("pardon.txt", []byte("203.0.113.78\n")) + "}]}\n"
		}
		more := ""
		if has(3) {
			more += "trackers: [{key: src, threshold: 1M/s}]\n"
			tracks++
		}
		if has(5) {
			more += "failsafe: {ports: [tcp/22]}\n"
		}
		h.configure(h.B.Iface, "lists:\n  %s%s", lists, more)
		return func(load *traffic) {
			what := fmt.Sprintf("reload %d", round)
			load.expect(what+", in the extra list", !has(2) || direction == "dst", blocked)
			load.expect(what+", allowed besides", !has(2) || direction == "dst" || has(4), pardoned)
			load.expect(what+", towards the extra list", !has(2) || direction == "src", toward)
			load.expect(what+", at the failsafe port", has(5), ssh)
			if has(15) { // once in five, since the tracker takes a second
				h.tracking(what)
			}
		}
	}
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", feed)
	load := h.flood()
	d := h.start(releases[0])
	commanded := addresses(commandBlock, 0, 100)
	h.mustChange("", false, lines(commanded)...)
	load.list(froms(commanded...)...)
	load.run()
	for round := 1; round <= long.Or(12, 60); round++ {
		check := configure(round)
		if round%2 == 0 {
			if r, err := h.api.Reload(t.Context()); err != nil || len(r.Changes) == 0 {
				t.Fatalf("reload %d: %+v, %v", round, r, err)
			}
		} else {
			from := d.logged()
			if err := d.process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			d.await(d.await(from, "reloading"), "configuration")
		}
		check(load)
	}
	load.finish()
	d.complain()
}

// tracking waits until a tracker has counted.
func (h *host) tracking(what string) {
	h.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		top, err := h.api.Top(h.t.Context())
		if err == nil && len(top.Trackers) == 1 && top.Trackers[0].Packets > 0 {
			return
		}
		if time.Now().After(deadline) {
			h.t.Errorf("%s: the tracker counts nothing: %+v, %v", what, top, err)
			return
		}
	}
}

// Whenever the daemon is killed, even during its start, filtering continues,
// and the next daemon takes over without a gap and with every acknowledged
// change.
func TestKills(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	t.Run("exact", func(t *testing.T) { t.Parallel(); testKills(t, "", "adopted a program", 0) })
	// With so many bits that no unlisted packet is dropped by mistake.
	t.Run("approx", func(t *testing.T) {
		t.Parallel()
		testKills(t, "mode: approx\nbits_per_entry: 64\n", "adopted the filter in the kernel", 1)
	})
}

// testKills kills daemons with a configuration, of which one that is not killed soon
// logs that it adopted what was there, but for a few: a daemon that is killed while it replaces the
// pin of its filter leaves none.
func testKills(t *testing.T, mode, adoption string, mostAnew int) {
	h := newHost(t)
	h.configure(h.B.Iface, "%slists: {always: {%s}}\n", mode, h.feed(50_000))
	load := h.flood()
	random := seed.New(t)
	d := h.start(releases[0])
	started := time.Since(d.began)
	load.run()

	// An operator adds entries continuously, one by one and by the dozen. Acknowledged ones
	// are listed from then on, or once a daemon that filters has made what waits.
	var mu sync.Mutex
	var confirmed []string
	var adding sync.WaitGroup
	end := make(chan struct{})
	stop := sync.OnceFunc(func() { close(end); adding.Wait() })
	defer stop()
	adding.Go(func() {
		for n := 0; ; {
			select {
			case <-end:
				return
			case <-time.After(2 * time.Millisecond):
			}
			batch := addresses(commandBlock, n, 1+n%12)
			if c, err := h.change("", false, lines(batch)...); err == nil && (c.Queued || c.Added == len(batch)) {
				mu.Lock()
				confirmed = append(confirmed, lines(batch)...)
				mu.Unlock()
				if !c.Queued {
					load.list(froms(batch...)...)
				}
			}
			n += len(batch) // one that failed may be there
			// Others come and go, so that kills interrupt removals, too.
			passing := lines(addresses(passingBlock, 0, 200))
			if _, err := h.change("", n%2 == 0, passing...); err != nil {
				continue
			}
		}
	})

	const enough = 50 // entries, for the test to say anything
	few := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(confirmed) < enough
	}
	adopted, anew := 0, 0
	count := func() {
		if d.after(0, adoption) > 0 { // which precedes that it filters
			adopted++
		} else {
			anew++
		}
	}
	for round := range 100 {
		if round >= long.Rounds(4, 12, 60) {
			if !few() {
				break
			}
			d.ready() // on a busy machine, none has been for long
			load.await(100)
		}
		// Half of the time before it filters, half of it after.
		wait := time.Duration(2 * random.Float64() * float64(started))
		time.Sleep(time.Until(d.began.Add(wait)))
		if wait > started && random.IntN(2) == 0 { // then some of them while it loads again
			d.process.Signal(syscall.SIGHUP)
			time.Sleep(time.Duration(random.Float64() * float64(started)))
		}
		d.kill()
		load.await(100) // while none runs
		d = h.begin(releases[0])
		if random.IntN(4) == 0 {
			d.ready()
			started = max(started, time.Since(d.began)) // the machine may be busier now
			count()
		}
	}
	d.ready()
	count()
	if most := mostAnew + (adopted+anew)/5; anew > most { // by chance, more of more
		t.Errorf("%d daemons adopted what was there, and %d did not, want %d at most", adopted, anew, most)
	}
	stop()
	h.emptied() // those that come and go are manual entries, too
	h.eventually("all entries are active", func() bool { return h.list("manual").Manual >= len(confirmed) })
	for _, a := range confirmed[:min(len(confirmed), 50)] {
		h.explain(a, true)
	}
	load.await(uint64(1000 + len(confirmed)))
	load.finish()
	kept, err := journal.Read(filepath.Join(h.dir, "state", "entries"), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	entries := slices.Collect(kept.Entries())
	for _, a := range confirmed {
		if !slices.ContainsFunc(entries, func(e journal.Entry) bool { return e.Key.Src.String() == a }) {
			t.Errorf("%s was added, and is not in the journal", a)
		}
	}
	t.Logf("it takes %v to start; %d entries were added between the kills", started.Round(time.Millisecond), len(confirmed))
	if few() {
		t.Error("too few for the test to say anything")
	}
	d.complain("journal ends with a torn record") // where one was killed while it wrote
}

// One version takes over from another, while that runs or after it was stopped.
func TestUpgrades(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(20_000))
	load := h.flood()
	d := h.start(releases[0])
	load.run()
	var confirmed []string
	for round := 1; round <= long.Or(4, 8); round++ {
		batch := addresses(commandBlock, 10*round, 10)
		h.mustChange("", false, lines(batch)...)
		confirmed = append(confirmed, lines(batch)...)
		load.list(froms(batch...)...)
		before := h.attachment()

		r := releases[round%len(releases)]
		old, flags := d, []string{}
		if round%2 == 0 {
			flags = append(flags, "--takeover")
		} else {
			d.stop()
		}
		d = h.start(r, flags...)
		old.end()
		now := h.attachment()
		if now.Version != r.version || now.PID != d.process.Pid || !now.Running || now.ProgramID == before.ProgramID {
			t.Errorf("upgrade %d: %+v", round, now.Metadata)
		}
		if got, want := now.Reasons["blocked"].Packets, before.Reasons["blocked"].Packets; got < want {
			t.Errorf("upgrade %d: the counter goes back from %d to %d", round, want, got)
		}
		for _, a := range confirmed {
			h.explain(a, true)
		}
		load.await(1000)
	}
	load.finish()
}

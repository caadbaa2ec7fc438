package daemon

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/timed"
)

// While a list of three or ten millions is replaced, the configuration is read again, and a stage is
// switched on and off, commands take no longer than maxWait, and what they block is blocked from then on.
// The bounds are for a quiet machine of two CPUs. The turn that a command waits for takes 15 ms of
// CPU time at most; the rest is its turn on a CPU, and the sync of the journal beside that of lists.
func TestCommandsBesideReplacement(t *testing.T) {
	long.Only(t, "has lists of up to 10 million entries")
	timed.Alone(t)
	for _, millions := range []int{3, 10} {
		t.Run(fmt.Sprintf("%d million", millions), func(t *testing.T) { commandsBesideReplacement(t, millions*1_000_000) })
	}
}

func commandsBesideReplacement(t *testing.T, entries int) {
	// Twice and six times as long as on a quiet machine with two cores.
	const maxMedian, maxWait = 100 * time.Millisecond, 250 * time.Millisecond
	h := newHost(t)
	random := seed.New(t)
	text := func() []byte {
		var b strings.Builder
		for range entries { // none of the traffic
			a := netip.AddrFrom4([4]byte{cleanBlock + 1 + byte(random.IntN(59)), byte(random.IntN(256)), byte(random.IntN(256)), byte(random.IntN(256))})
			b.WriteString(a.String())
			b.WriteByte('\n')
		}
		return []byte(b.String())
	}
	versions := [][]byte{text(), text()}
	path := h.write("feed.txt", versions[0])
	configure := func(more string) {
		h.configure(h.B.Iface, "%slists: {big: {sources: [{file: %s}], interval: 24h}}\n", more, path)
	}
	configure("")
	d := h.start(releases[0])
	h.settled("big")
	load := startTraffic(t, h.Lab, froms(addresses(commandBlock, 0, 1)...), froms(addresses(cleanBlock, 0, 10)...))
	h.mustChange("", false, address(commandBlock, 0).String())
	load.run()
	next := 1
	// beside returns how long the slowest command took beside work.
	beside := func(what string, work func() error) (worst time.Duration) {
		t.Helper()
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- work() }()
		n := 0
		for ended := false; !ended; next++ {
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				ended = true
			case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
			}
			asked := time.Now()
			h.mustChange("", false, address(commandBlock, next).String())
			worst = max(worst, time.Since(asked))
			n++
		}
		t.Logf("%s: %v; the slowest of %d commands took %v", what, time.Since(began).Round(time.Millisecond), n, worst.Round(time.Millisecond))
		load.expect(what, false, froms(addresses(commandBlock, 0, next)...)...)
		return worst
	}
	reload := func() error {
		_, err := h.api.Reload(t.Context())
		return err
	}
	var replaced []time.Duration
	median := func() time.Duration {
		all := slices.Sorted(slices.Values(replaced))
		return all[len(all)/2]
	}
	for i := 0; i < 3 || i < 9 && median() > maxMedian; i++ { // a machine may be busy for a while
		h.write("feed.txt", versions[(i+1)%2])
		unix.Sync() // what the test has written keeps the disk busy
		replaced = append(replaced, beside("replacement", func() error {
			_, err := h.api.Refresh(t.Context(), "big")
			return err
		}))
	}
	all := slices.Clone(replaced)
	all = append(all, beside("reload", reload))
	configure("replies: pass\n")
	all = append(all, beside("a stage on", reload))
	configure("")
	all = append(all, beside("a stage off", reload))
	if m := median(); m > maxMedian {
		t.Errorf("beside a replacement, the slowest command took %v, the median of %v; want %v at most", m, replaced, maxMedian)
	}
	// A machine that stands still for a moment does so in one of them.
	slices.Sort(all)
	if slow := all[len(all)-2]; slow > maxWait {
		t.Errorf("commands took %v, want %v at most in all but one", all, maxWait)
	}
	if l := h.list("manual"); l.Manual != next {
		t.Errorf("%d manual entries, want %d", l.Manual, next)
	}
	d.complain()
}

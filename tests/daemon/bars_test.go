package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/timed"
)

// spread is the i-th of different addresses, all over IPv4.
func spread(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i)*0x9e3779b1)
	return netip.AddrFrom4(b)
}

// bigList writes a list with n lines: addresses and, one line in five, prefixes
// /24 to /31, as in the benchmark of loading.
func (h *host) bigList(n int) string {
	h.t.Helper()
	random := rand.New(rand.NewPCG(5, 6))
	var text bytes.Buffer
	for i := range n {
		p := netip.PrefixFrom(spread(i), 32)
		if i%5 == 0 {
			p = netip.PrefixFrom(p.Addr(), 24+random.IntN(8)).Masked()
			text.Write(p.AppendTo(text.AvailableBuffer()))
		} else {
			text.Write(p.Addr().AppendTo(text.AvailableBuffer()))
		}
		text.WriteByte('\n')
	}
	return h.write("feed.txt", text.Bytes())
}

// resident is the memory of the process in bytes, that of the kernel's maps which it
// has mapped included.
func (d *daemon) resident() int {
	d.h.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.process.Pid))
	if err != nil {
		d.h.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		d.h.t.Fatal(err)
	}
	return kib << 10
}

// times are of all threads of a process together.
type times struct{ ran, waited time.Duration } // on CPUs, and waiting for one

// alone estimates a duration on an otherwise idle machine: the fraction of it
// in which the runnable threads did run.
func (now times) alone(took time.Duration, before times) time.Duration {
	ran, waited := now.ran-before.ran, now.waited-before.waited
	return time.Duration(float64(took) * float64(ran) / float64(ran+waited))
}

// times are the process's so far.
func (d *daemon) times() (sum times) {
	d.h.t.Helper()
	// Of the process as a whole there are but ticks.
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", d.process.Pid))
	if err != nil {
		d.h.t.Fatal(err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", d.process.Pid, thread.Name()))
		if err != nil {
			continue // it has ended
		}
		var t times
		if _, err := fmt.Sscan(string(stat), &t.ran, &t.waited); err != nil {
			d.h.t.Fatal(err)
		}
		sum.ran, sum.waited = sum.ran+t.ran, sum.waited+t.waited
	}
	return sum
}

// The bars for a large set: start, changes, and cost. Each figure is the best
// of a few, without the time in which other processes had the CPUs.
func TestBars(t *testing.T) {
	timed.Alone(t)
	lab.Root(t)
	const changes = 10_000
	entries := long.Or(1_000_000, 10_000_000)
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {big: {sources: [{file: %s}], interval: 24h}}\n", h.bigList(entries))
	h.start(releases[0]).stop() // reads the source and saves it
	f := startTraffic(t, h.Lab, nil, nil)

	start, change := time.Hour, time.Hour
	perLine := 1e9
	for range long.Or(2, 3) {
		h.detach()
		d := h.start(releases[0])
		took, now := time.Since(d.began), d.times()
		f.expect("after the start", false, from(spread(1)))
		t.Logf("%d saved entries are enforced %v after the start", entries, took.Round(time.Millisecond))
		start = min(start, now.alone(took, times{}))
		h.settled("big")
		for i := range 4 {
			var batch []netip.Addr // which the list has not, all over the address space
			for j := range changes {
				batch = append(batch, spread(2*entries+changes*(i/2)+j))
			}
			text, remove := lines(batch), i%2 == 1
			began, before := time.Now(), d.times()
			if c, err := h.change("", remove, text...); err != nil || c.Added+c.Removed != changes {
				t.Fatalf("%+v, %v", c, err)
			}
			took, now := time.Since(began), d.times()
			f.expect("what was changed", remove, froms(batch[0], batch[changes-1])...)
			t.Logf("%d changes (removals: %t) are enforced after %v", changes, remove, took.Round(time.Millisecond))
			change = min(change, now.alone(took, before))
		}
		memory := float64(d.resident())
		perLine = min(perLine, memory/float64(entries))
		t.Logf("%.0f MiB resident, %.1f bytes an entry", memory/(1<<20), memory/float64(entries))
		// Random addresses have private ones, and the program was detached.
		d.complain("private networks are blocked", "the program of the last daemon was gone")
		d.stop()
	}

	for _, bar := range []struct {
		what         string
		figure, most float64
		small        float64 // maximum with the small list, dominated by the process itself
	}{
		{"seconds to start", start.Seconds(), 6, 3},
		{"seconds for 10 000 changes", change.Seconds(), 0.1, 0.2},
		{"bytes of memory an entry", perLine, 60, 200},
	} {
		most := long.Or(bar.small, bar.most)
		t.Logf("%-28s %8.4f, at most %g", bar.what, bar.figure, most)
		if bar.figure > most {
			t.Errorf("%s: %.4f, want %g at most", bar.what, bar.figure, most)
		}
	}
}

// sleeps returns how often the process's threads have waited for something so far.
func (d *daemon) sleeps() (sum int) {
	d.h.t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.process.Pid))
	if err != nil || len(all) == 0 {
		d.h.t.Fatal("the process has no threads: ", err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		var n int
		if _, err := fmt.Sscan(rest, &n); err != nil {
			d.h.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// With a large list, two trackers and no traffic, the daemon does next to nothing: its threads
// wake ten times a second, as Go needs for three timers, or thirty where
// namespaces report other changes, as after other tests, and take 0.15
// percent of a CPU, or on a machine where waking is expensive, no more than two and a half times
// what a process takes that wakes so often.
func TestIdle(t *testing.T) {
	timed.Alone(t)
	lab.Root(t)
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {big: {sources: [{file: %s}], interval: 24h}}\n"+
		"trackers: [{key: src, threshold: 50kpps, action: block}, {key: dst, threshold: 100kpps}]\n", h.bigList(1_000_000))
	d := h.start(releases[0])
	h.settled("big")
	busy, waking, woken, length := 1., 1., 1e3, time.Duration(long.Or(2, 5))*time.Second
	most := func() float64 { return max(0.0015, 2.5*waking) } // of a CPU
	const mostWoken = 50.                                     // times a second
	// Memory may be returned after the start, and waking costs more on an idle machine. The
	// host's ends of the wire send for some seconds, to find their neighbours.
	for i := 0; i < 2 || (busy > most() || woken > mostWoken) && i < 12; i++ {
		before, slept, began := d.times(), d.sleeps(), time.Now()
		own := timed.Process(t)
		for tick := time.NewTicker(50 * time.Millisecond); time.Since(began) < length; {
			<-tick.C
		}
		waking = min(waking, float64(timed.Process(t)-own)/float64(time.Since(began)))
		busy = min(busy, float64(d.times().ran-before.ran)/float64(time.Since(began)))
		woken = min(woken, float64(d.sleeps()-slept)/time.Since(began).Seconds())
	}
	t.Logf("%.1f wake-ups a second", woken)
	if woken > mostWoken {
		t.Errorf("%.1f wake-ups a second, want %.0f at most", woken, mostWoken)
	}
	t.Logf("%.2f %% of a CPU; waking twenty times a second takes %.2f %%", 100*busy, 100*waking)
	if busy > most() {
		t.Errorf("%.2f %% of a CPU when idle, want %.2f %% at most", 100*busy, 100*most())
	}
}

// changedLines returns a list's text with one line in two hundred replaced by an address that it
// has not.
func changedLines(text []byte, entries, round int) []byte {
	var b bytes.Buffer
	b.Grow(len(text) + len(text)/100)
	n := 0
	for line := range bytes.Lines(text) {
		if n%200 == round {
			b.Write(spread(2*entries + n*8 + round).AppendTo(b.AvailableBuffer()))
			b.WriteByte('\n')
		} else {
			b.Write(line)
		}
		n++
	}
	return b.Bytes()
}

// The bars of a reload, where nothing has changed, and where one entry in a hundred has: half of
// them have gone, half are new. Each figure is the best of three, and as for TestBars. For one in
// a hundred of 10M, the goal is 1.5 s, and a quiet machine with two cores took 1.67 s: the test
// holds what was reached, in proportion to the start with the same list where that takes longer
// than 2.2 s (2.87 s where it took 3.26).
func TestReloadBars(t *testing.T) {
	timed.Alone(t)
	lab.Root(t)
	entries := long.Or(1_000_000, 10_000_000)
	h := newHost(t)
	path := h.bigList(entries)
	h.configure(h.B.Iface, "lists: {big: {sources: [{file: %s}], interval: 24h}}\n", path)
	d := h.start(releases[0])
	h.settled("big")
	start := d.times().alone(time.Since(d.began), times{})
	slower := 1.0
	if long.Enabled {
		slower = max(1, start.Seconds()/2.2)
	}
	reload := func(what string) time.Duration {
		before, began := d.times(), time.Now()
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		took, now := time.Since(began), d.times()
		ran := now.ran - before.ran
		t.Logf("%s: active after %v, %v of processor time", what, took.Round(time.Millisecond), ran.Round(time.Millisecond))
		return now.alone(took, before)
	}
	same, changed := time.Hour, time.Hour
	for range 3 {
		same = min(same, reload("nothing changed"))
	}
	for round := 1; round <= 3; round++ {
		text := must.Read(t, path)
		h.write("feed.txt", changedLines(text, entries, round))
		changed = min(changed, reload("one in a hundred"))
		h.explain(spread(2*entries+round*9).String(), true)
		h.explain(spread(200+round).String(), false)
	}
	d.complain("private networks are blocked", "feed failed") // where the file is replaced while its watcher reads it
	for _, bar := range []struct {
		what       string
		took, most time.Duration
	}{
		{"nothing changed", same, 100 * time.Millisecond},
		{"one in a hundred", changed, time.Duration(slower * float64(long.Or(500*time.Millisecond, 2500*time.Millisecond)))},
	} {
		t.Logf("%-28s %8.4f s, at most %g", bar.what, bar.took.Seconds(), bar.most.Seconds())
		if bar.took > bar.most {
			t.Errorf("%s: %v, want %v at most", bar.what, bar.took, bar.most)
		}
	}
}

// The bars of 120 interfaces of one namespace, with a list of a thousand entries and a tracker:
// from the start to filtering, and idle.
func TestManyInterfaces(t *testing.T) {
	timed.Alone(t)
	lab.Root(t)
	long.Only(t, "half a minute")
	const interfaces = 120
	h := newHost(t)
	if err := h.B.Do(func() error {
		for i := range interfaces / 2 {
			if out, err := exec.Command("ip", "link", "add", fmt.Sprintf("m%d", i), "type", "veth", "peer", "name", fmt.Sprintf("m%d", interfaces/2+i)).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h.configure("m*", "lists: {big: {sources: [{file: %s}], interval: 24h}}\n"+
		"trackers: [{key: src, threshold: 50kpps, action: block}]\n", h.bigList(1000))
	d := h.start(releases[0])
	took, now := time.Since(d.began), d.times()
	t.Logf("%d interfaces are filtered %v after the start, %v of processor time; alone, it would take %v",
		interfaces, took.Round(time.Millisecond), now.ran.Round(time.Millisecond), now.alone(took, times{}).Round(time.Millisecond))
	h.settled("big")
	const mostBusy = 0.05 // of a CPU
	busy, woken := 1., 1e6
	for i := 0; busy > mostBusy && i < 5; i++ {
		before, slept, began := d.times(), d.sleeps(), time.Now()
		time.Sleep(4 * time.Second)
		busy = min(busy, float64(d.times().ran-before.ran)/float64(time.Since(began)))
		woken = min(woken, float64(d.sleeps()-slept)/time.Since(began).Seconds())
	}
	t.Logf("idle: %.2f %% of a CPU, %.0f wake-ups a second; %d MiB resident", 100*busy, woken, d.resident()>>20)
	for _, bar := range []struct {
		what         string
		figure, most float64
	}{
		{"seconds to start, alone", now.alone(took, times{}).Seconds(), 8},
		{"of a CPU when idle", busy, mostBusy},
		{"MiB resident", float64(d.resident() >> 20), 100},
	} {
		if bar.figure > bar.most {
			t.Errorf("%s: %g, want %g at most", bar.what, bar.figure, bar.most)
		}
	}
}

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// cpuTime is the processor time that this thread has taken so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A daemon has thousands of lists: each is enforced, counted and described, across a reload
// and a restart, and a turn of its loop takes no time to speak of.
func TestManyLists(t *testing.T) {
	long.Seconds(t)
	n := long.Or(600, 2000)
	l, dir := lab.New(t), t.TempDir()
	pins, file := "/sys/fs/bpf/"+l.B.Netns, filepath.Join(dir, "weir.yaml")
	entry := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{100, 1, byte(i >> 8), byte(i)}) }
	var text strings.Builder
	fmt.Fprintf(&text, "interfaces: [{name: %s, netns: %s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\nlists:\n",
		l.B.Iface, l.B.Netns, pins, dir, filepath.Join(dir, "sock"))
	add := func(i int) {
		path := filepath.Join(dir, fmt.Sprintf("customer-%d.txt", i))
		write(t, path, entry(i).String()+"\n")
		fmt.Fprintf(&text, "  customer-%d: {sources: [{file: %s}], interval: 24h}\n", i, path)
	}
	for i := range n {
		add(i)
	}
	write(t, file, text.String())
	t.Cleanup(func() {
		if _, err := attach.DetachAll(loader.Pins(pins)); err != nil {
			t.Error(err)
		}
		os.Remove(pins)
	})

	begin := func() (d *Daemon, end func()) {
		began := time.Now()
		d, err := Start(t.Context(), Options{Config: config.File(file), Version: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d lists: started after %v", n, time.Since(began).Round(time.Millisecond))
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- d.Run(ctx, nil, time.Hour, nil) }()
		return d, func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := d.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	block := func(d *Daemon, addr string) {
		t.Helper()
		began := time.Now()
		if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{addr}}); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s is blocked after %v", addr, time.Since(began).Round(time.Millisecond))
	}
	// enforced checks that each of some lists drops its entry and counts that.
	enforced := func(d *Daemon, lists int) {
		t.Helper()
		// Beside others, on a slow machine, thousands of lists take minutes.
		for deadline := time.Now().Add(time.Minute + time.Duration(n)*200*time.Millisecond); ; {
			active, began := 0, time.Now()
			for _, l := range d.readings.Lists().Lists {
				if l.Entries == 1 && strings.HasPrefix(l.Name, "customer-") {
					active++
				}
			}
			if active == lists {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d lists are active", active, lists)
			}
			// To describe thousands of lists takes the time of the loop that takes them in.
			time.Sleep(max(20*time.Millisecond, 10*time.Since(began)))
		}
		for i := 0; i < lists; i += lists/5 - 1 {
			name := fmt.Sprintf("customer-%d", i)
			before := d.observers.meter.Hits()[name].Packets
			sendFrame(t, l, 1, packet.Frame(key.Tuple{Src: entry(i), Dst: l.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2}))
			for deadline := wait.Deadline(); d.observers.meter.Hits()[name].Packets != before+1; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("list %s has counted %d packets, not %d", name, d.observers.meter.Hits()[name].Packets, before+1)
				}
			}
		}
	}
	described := func(lists int) {
		t.Helper()
		all, err := attach.ReadStatus(loader.Pins(pins))
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if got := len(all[0].Lists); got != 2*lists+2 || len(all[0].ByList) != 2*lists+1 {
			t.Errorf("%d lists are described and %d are counted, of %d", got, len(all[0].ByList), lists)
		}
	}

	d, end := begin()
	block(d, "192.0.2.1") // while lists are taken in
	enforced(d, n)
	described(n)
	add(n)
	write(t, file, text.String())
	began := time.Now()
	if r, err := d.Reload(t.Context()); err != nil || len(r.Changes) != 1 {
		t.Fatal(r, err)
	}
	t.Logf("reloaded after %v", time.Since(began).Round(time.Millisecond))
	enforced(d, n+1)
	block(d, "192.0.2.2")
	// What each turn of a second and of ten seconds does, and a change.
	took := time.Hour
	for range 3 {
		if err := d.loop.doAlone(t.Context(), func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := cpuTime(t)
			d.antiLockout.lookAgain, d.active.changed = time.Time{}, true
			d.tend(time.Now())
			d.active.describe()
			d.note()
			took = min(took, cpuTime(t)-before)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a turn takes %v of a processor", took.Round(time.Millisecond))
	if most := time.Duration(n) * time.Second / 4000; took > most {
		t.Errorf("a turn takes %v of a processor, more than %v", took, most)
	}
	end()

	n++
	d, end = begin() // adopts
	defer end()
	enforced(d, n)
	described(n)
}

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
)

// Shared maps outlive their process. Their entries move along to maps of another size, as far as
// they fit; maps of another layout are replaced.
func TestSharedStay(t *testing.T) {
	d := testPins(t)
	count := func(s *Shared) (n int) {
		t.Helper()
		var k bpf.WeirConnection
		var v bpf.WeirConnectionState
		if err := s.Each(bpf.WeirMapConnections, &k, &v, func() error {
			if uint64(k.Proto) != v.Until {
				t.Errorf("%+v has %+v", k, v)
			}
			n++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	open := func(entries, want int) *Shared {
		t.Helper()
		s, err := d.OpenShared(map[string]int{bpf.WeirMapConnections: entries})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		if n := count(s); n != want {
			t.Errorf("%d entries, want %d", n, want)
		}
		return s
	}
	put := func(s *Shared, i uint32) {
		t.Helper()
		if err := s.Put(bpf.WeirMapConnections, &bpf.WeirConnection{Proto: i}, &bpf.WeirConnectionState{Until: uint64(i)}, ebpf.UpdateAny); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(s *Shared) {
		t.Helper()
		if err := d.KeepShared(newTestGeneration(t, Config{Shared: s})); err != nil {
			t.Fatal(err)
		}
	}
	first := open(1024, 0)
	for i := range uint32(100) {
		put(first, i)
	}
	keep(first)
	keep(open(1024, 100))
	open(4096, 100) // for programs that fail
	put(first, 1000)
	open(1024, 101) // what the former ones go on with
	second := open(4096, 101)
	put(first, 1001)
	keep(second)
	open(4096, 102) // also what was remembered until all had changed
	if err := d.ForgetShared(); err != nil {
		t.Fatal(err)
	}
	keep(open(4096, 0))
	smaller := open(1024, 0) // also where what is pinned has room
	if n := smaller.maps[bpf.WeirMapConnections].entries(); n != 1024 {
		t.Errorf("a map for 1024 entries has room for %d", n)
	}

	path := filepath.Join(string(d), bpf.WeirMapConnections)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stats, err := NewStats(1)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	stats.read(func(k pinnedMaps) { err = k[pinLists].m.Pin(path) })
	if err != nil {
		t.Fatal(err)
	}
	open(1024, 0)
	for range 2 {
		if err := d.ForgetShared(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewShared(map[string]int{bpf.WeirMapConnections: 0}); err == nil {
		t.Error("a map has no entries")
	}
}

// What the former programs remember while others are built is in the new maps, and what the new
// ones have remembered stays.
func TestSharedMerged(t *testing.T) {
	d := testPins(t)
	open := func(entries int) *Shared {
		t.Helper()
		s, err := d.OpenShared(map[string]int{bpf.WeirMapConnections: entries, bpf.WeirMapPartners: entries})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	put := func(s *Shared, i uint32, state bpf.WeirConnectionState, c bpf.WeirConversation) {
		t.Helper()
		if err := errors.Join(
			s.Put(bpf.WeirMapConnections, &bpf.WeirConnection{Proto: i}, &state, ebpf.UpdateAny),
			s.Put(bpf.WeirMapPartners, &bpf.WeirPartner{Family: uint8(i)}, &c, ebpf.UpdateAny),
		); err != nil {
			t.Fatal(err)
		}
	}
	first := open(1024)
	if err := d.KeepShared(newTestGeneration(t, Config{Shared: first})); err != nil {
		t.Fatal(err)
	}
	put(first, 1, bpf.WeirConnectionState{Until: 10, Expected: 7}, bpf.WeirConversation{First: 5, Last: 5, How: 1})
	put(first, 2, bpf.WeirConnectionState{Until: 10}, bpf.WeirConversation{First: 5, Last: 5, How: 1})
	second := open(4096)
	put(first, 1, bpf.WeirConnectionState{Until: 1000, Answered: 1}, bpf.WeirConversation{First: 5, Last: 9, How: 3}) // by the former programs
	put(second, 2, bpf.WeirConnectionState{Until: 20, Answered: 1}, bpf.WeirConversation{First: 6, Last: 8, How: 2})  // by the new ones
	if err := d.KeepShared(newTestGeneration(t, Config{Shared: second})); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[uint32]struct {
		state bpf.WeirConnectionState
		c     bpf.WeirConversation
	}{
		1: {bpf.WeirConnectionState{Until: 1000, Answered: 1}, bpf.WeirConversation{First: 5, Last: 9, How: 3}},
		2: {bpf.WeirConnectionState{Until: 20, Answered: 1}, bpf.WeirConversation{First: 5, Last: 8, How: 3}},
	} {
		var state bpf.WeirConnectionState
		var c bpf.WeirConversation
		if err := errors.Join(
			second.maps[bpf.WeirMapConnections].m.Lookup(&bpf.WeirConnection{Proto: i}, &state),
			second.maps[bpf.WeirMapPartners].m.Lookup(&bpf.WeirPartner{Family: uint8(i)}, &c),
		); err != nil || state != want.state || c != want.c {
			t.Errorf("%d: %+v, %+v, %v; want %+v", i, state, c, err, want)
		}
	}
	if err := d.ForgetShared(); err != nil {
		t.Fatal(err)
	}
}

// Maps that were made for programs that failed are not pinned in place of those in use, whether
// these are opened again or never were closed.
func TestSharedFailed(t *testing.T) {
	for _, again := range []bool{true, false} {
		d := testPins(t)
		open := func(entries int) *Shared {
			t.Helper()
			s, err := d.OpenShared(map[string]int{bpf.WeirMapConnections: entries})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}
		keep := func(s *Shared) {
			t.Helper()
			if err := d.KeepShared(newTestGeneration(t, Config{Shared: s})); err != nil {
				t.Fatal(err)
			}
		}
		path := d.shared(bpf.WeirMapConnections)
		left := func() bool { return bpffs.Exists(path + nextShared) }
		first := open(64)
		keep(first)
		open(128) // for programs that fail
		last := first
		if again {
			if last = open(64); left() {
				t.Error("the map of programs that failed is still pinned")
			}
		}
		keep(last)
		if is, err := (bpffs.Map{Map: first.maps[bpf.WeirMapConnections].m}).IsAt(path); !is || err != nil {
			t.Errorf("opened again: %t: another map is pinned, %v", again, err)
		}
		if left() {
			t.Errorf("opened again: %t: the map of programs that failed is still pinned", again)
		}
		if err := d.ForgetShared(); err != nil {
			t.Error(err)
		}
	}
}

// On a bpffs that is read-only, the maps that are pinned are used on.
func TestSharedReadOnly(t *testing.T) {
	d := testPins(t)
	mountPins(t, string(d))
	entries := map[string]int{bpf.WeirMapConnections: 1024}
	use := func() {
		t.Helper()
		s, err := d.OpenShared(entries)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := d.KeepShared(newTestGeneration(t, Config{Shared: s})); err != nil {
			t.Fatal(err)
		}
	}
	use()
	if err := unix.Mount("", string(d), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	use()
}

// An entry that is evicted while it is copied keeps no other one from being copied.
func TestSharedCopiedBesideEviction(t *testing.T) {
	const n = 4096
	makeMap := func(entries int) *array {
		t.Helper()
		a, err := newShared(bpf.WeirMapConnections, entries)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	from, to := makeMap(n), makeMap(4*n)
	var key bpf.WeirConnection
	for key.Proto = range uint32(n) {
		if err := errors.Join(
			from.m.Put(&key, &bpf.WeirConnectionState{Until: uint64(key.Proto) + 1}),
			to.m.Put(&key, &bpf.WeirConnectionState{}),
		); err != nil {
			t.Fatal(err)
		}
	}
	had, merged, evicted := 0, 0, 0
	var state bpf.WeirConnectionState
	for key.Proto = range uint32(n) {
		if from.m.Lookup(&key, &state) == nil {
			had++
		}
	}
	err := copyEntries[bpf.WeirConnection](from, to, func(_, old bpf.WeirConnectionState) bpf.WeirConnectionState {
		if merged++; merged == had/2 {
			key.Proto = uint32(old.Until) - 1
			if err := from.m.Delete(&key); err != nil {
				t.Error(err)
			}
			evicted = 1
		}
		return old
	})
	if err != nil || evicted == 0 {
		t.Fatal(err, evicted)
	}
	copied := 0
	for key.Proto = range uint32(n) {
		if to.m.Lookup(&key, &state) == nil && state.Until > 0 {
			copied++
		}
	}
	if copied < had {
		t.Errorf("%d of %d entries are copied", copied, had)
	}
}

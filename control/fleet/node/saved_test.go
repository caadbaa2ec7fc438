package node

import (
	"crypto/ed25519"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/snapshot"
	"weir/tests/crash"
)

// TestDurable lets the machine crash, and steps fail, while a list is saved whole and by
// deltas, and is loaded again. The version that was saved last is there.
func TestDurable(t *testing.T) {
	synctest.Test(t, testDurable) // the time stands still, so that the same work makes the same files
}

func testDurable(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sets := []*list.Set{set(t)}
	var deltas [][]byte // from each version to the next
	for n := range 6 {
		next := list.Union(sets[n], set(t, fmt.Sprintf("192.0.2.%d", n+1)))
		d := next.Diff(sets[n])
		deltas = append(deltas, must(wire.SealDelta(private, wire.Delta{
			List: name, Epoch: 1, From: uint64(n), To: uint64(n + 1), Sum: snapshot.Of(next.Groups()).String(), Entries: next.Len(),
			Issued: time.Now(), Add: d.Add.Groups(), Remove: d.Remove.Groups(),
		})))
		sets = append(sets, next)
	}
	at := func(n int) *state {
		return &state{Place: wire.Place{Epoch: 1, Version: uint64(n)}, entries: sets[n], sum: snapshot.Of(sets[n].Groups())}
	}
	pathIn := func(dir string) string { return filepath.Join(dir, "fleet", name) }
	load := func(dir string) (*disk, *state, error) {
		d := &disk{path: pathIn(dir)}
		s, err := d.load(name, public)
		return d, s, err
	}
	crash.Test{
		Begin: "0",
		Work: func(t *testing.T, d *crash.Disk) {
			to := &disk{path: pathIn(d.Dir)}
			save := func(n, syncs int) {
				before := d.Count("sync /")
				defer func() {
					if got := d.Count("sync /") - before; got != syncs && !d.Fails() {
						t.Errorf("version %d: %d syncs of the file, want %d", n, got, syncs)
					}
				}()
				_ = d.Do(func() error {
					if to.base == 0 {
						return to.compact(name, at(n))
					}
					return to.append(deltas[n-1 : n])
				}, fmt.Sprint(n))
			}
			save(1, 1)
			save(2, 1)
			to.base = 0
			save(3, 1)
			save(4, 1)
			if before := to.base; before > 0 {
				var err error
				if to, _, err = load(d.Dir); err != nil || to.base != before {
					t.Errorf("%d bytes, want %d, %v", to.base, before, err)
				}
			}
			save(5, 2) // what was loaded may not have been synced
			save(6, 1)
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			_, s, err := load(dir)
			if s == nil {
				return "0", err
			}
			if !equal(s.entries, sets[s.Version]) {
				t.Errorf("version %v has other entries", s.Place)
			}
			return fmt.Sprint(s.Version), err
		},
	}.Run(t)
}

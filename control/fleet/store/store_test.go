package store

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/durable"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/snapshot"
	"weir/tests/crash"
	"weir/tests/long"
)

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return private
}

func open(t *testing.T, dir string, private ed25519.PrivateKey) (*Store, *List, error) {
	t.Helper()
	s, err := Open(dir, private)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	l, damaged, err := s.List("drop")
	if err != nil {
		t.Fatal(err)
	}
	return s, l, damaged
}

func entries(t *testing.T, n int) *list.Set {
	t.Helper()
	var all list.Entries
	for i := range n {
		e, err := listfile.ParseEntry(fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
		if err != nil {
			t.Fatal(err)
		}
		all.Append(e)
	}
	return all.Set()
}

func commit(t *testing.T, l *List, n int) {
	t.Helper()
	if changed, err := l.Commit(Change{Contents: entries(t, n)}); err != nil || !changed {
		t.Fatal(changed, err)
	}
}

func sum(s *list.Set) string { return snapshot.Of(s.Groups()).String() }

// one returns the only file that matches.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "lists", "drop", pattern))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
}

// TestTorn cuts the log off at each byte of its last frame: the version before is
// there, and the next one follows it. What is cut off earlier loses more, and nothing
// that is wrong is ever read.
func TestTorn(t *testing.T) {
	long.Seconds(t)
	crash.WithoutSyncs(t)
	private := newKey(t)
	dir := t.TempDir()
	s, l, _ := open(t, dir, private)
	var ends []int64
	for i := range 4 {
		commit(t, l, i+1)
		ends = append(ends, l.log.Size())
	}
	epoch := l.Place().Epoch
	s.Close()
	whole, err := os.ReadFile(one(t, dir, logPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for cut := ends[2]; cut <= ends[3]; cut++ {
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(one(t, copied, logPrefix+"*"), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s, l, damaged := open(t, copied, private)
		want := 3
		if cut == ends[3] {
			want = 4
		}
		if at := (wire.Place{Epoch: epoch, Version: uint64(want + 1)}); damaged != nil || l.Place() != at || sum(l.Contents()) != sum(entries(t, want)) {
			t.Fatalf("cut off at %d: %v with %d entries, %v; want %v", cut, l.Place(), l.Contents().Len(), damaged, at)
		}
		commit(t, l, 9)
		s.Close()
		_, l, damaged = open(t, copied, private)
		if damaged != nil || l.Place().Version != uint64(want+2) || l.Contents().Len() != 9 {
			t.Fatalf("cut off at %d, then changed: %v with %d entries, %v", cut, l.Place(), l.Contents().Len(), damaged)
		}
	}
}

// TestDamaged changes stored bytes: that is noticed, and begins a new epoch,
// in which no version number stands for two contents.
func TestDamaged(t *testing.T) {
	crash.WithoutSyncs(t)
	private := newKey(t)
	dir := t.TempDir()
	s, l, _ := open(t, dir, private)
	for i := range 3 {
		commit(t, l, i+1)
	}
	before := l.Place()
	s.Close()
	for _, pattern := range []string{logPrefix + "*", basePrefix + "*"} {
		file, err := os.ReadFile(one(t, dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(file)/2; at += 7 {
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			bad := append([]byte(nil), file...)
			bad[at] ^= 0x10
			if err := os.WriteFile(one(t, copied, pattern), bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, l, damaged := open(t, copied, private)
			if damaged == nil || l.Place().Epoch <= before.Epoch {
				t.Fatalf("%s changed at %d: %v, before %v, and no damage", pattern, at, l.Place(), before)
			}
		}
	}
	// The key of another fleet.
	_, l, damaged := open(t, dir, newKey(t))
	if damaged == nil || l.Place().Epoch <= before.Epoch {
		t.Errorf("signed by another: %v, %v", l.Place(), damaged)
	}
}

// A damaged list whose new epoch cannot begin is not open: it is damaged the next time too,
// and can be changed once the epoch has begun.
func TestDamagedTwice(t *testing.T) {
	private, dir := newKey(t), t.TempDir()
	s, l, _ := open(t, dir, private)
	commit(t, l, 1)
	before := l.Place()
	s.Close()
	if err := os.WriteFile(one(t, dir, basePrefix+"*"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, private)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, obstacle := range []string{s.statePath(), filepath.Join(dir, "lists", "drop", basePrefix+"1")} {
		obstacle += ".new"
		if err := os.Mkdir(obstacle, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, damaged, err := s.List("drop"); damaged == nil || err == nil {
			t.Fatal("an epoch has begun", damaged, err)
		}
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
	}
	l, damaged, err := s.List("drop")
	if damaged == nil || err != nil || l.Bulky() || l.Place().Epoch <= before.Epoch {
		t.Fatal(l.Place(), damaged, err)
	}
	commit(t, l, 2)
}

// A state without an epoch, or that is no JSON, opens no store, and the error says why.
func TestDamagedState(t *testing.T) {
	for text, want := range map[string]string{"{}": "it has no epoch", "{": "unexpected end of JSON input"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, newKey(t)); err == nil || !strings.Contains(err.Error(), "is damaged: "+want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestFull has the disk refuse a change: there is no such version, and it can be made
// later.
func TestFull(t *testing.T) {
	s, l, _ := open(t, t.TempDir(), newKey(t))
	commit(t, l, 1)
	before := l.Place()
	l.log.Close() // every write fails from here on
	if changed, err := l.Commit(Change{Contents: entries(t, 2)}); err == nil || changed {
		t.Fatal("written to a file that is closed")
	}
	if l.Place() != before || l.Contents().Len() != 1 {
		t.Errorf("%v with %d entries, before %v", l.Place(), l.Contents().Len(), before)
	}
	var err error
	if l.log, err = durable.Open(l.logPath(l.Base().Place), 0); err != nil {
		t.Fatal(err)
	}
	commit(t, l, 2)
	if l.Place().Version != before.Version+1 {
		t.Errorf("%v after %v", l.Place(), before)
	}
	if _, err := Open(s.dir, s.key); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
}

// TestFullBase has the disk refuse a new base. While nothing of it is on disk, changes go
// into the log that there is; a base that is there, but could not be made durable, is
// written again first. Either way the versions from the base on stay known.
func TestFullBase(t *testing.T) {
	for name, x := range map[string]struct {
		obstacle string // of the base
		commits  bool   // changes can be made before it is gone
	}{
		"it cannot be written":      {obstacle: ".new", commits: true},
		"it cannot be made durable": {},
	} {
		t.Run(name, func(t *testing.T) {
			private, dir := newKey(t), t.TempDir()
			s, l, _ := open(t, dir, private)
			for n := range 3 {
				commit(t, l, n+1)
			}
			stable := l.Place()
			// No file replaces a directory that is not empty.
			obstacle := l.basePath(stable.Version) + x.obstacle
			if err := os.MkdirAll(filepath.Join(obstacle, "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := l.Rebase(); err == nil {
					t.Fatal("there is a base")
				}
			}
			candidate := Change{Contents: entries(t, 4), Stepwise: true}
			if changed, err := l.Commit(candidate); changed != x.commits || (err == nil) != x.commits {
				t.Fatal(changed, err)
			}
			if !x.commits && (l.Place() != stable || l.Contents().Len() != 3) {
				t.Errorf("%v with %d entries, want %v", l.Place(), l.Contents().Len(), stable)
			}
			if _, err := os.Stat(l.logPath(stable)); x.commits && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a log without a base is left: %v", err)
			}
			if err := os.RemoveAll(obstacle); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Commit(candidate); err != nil {
				t.Fatal(err)
			}
			want := wire.Place{Epoch: stable.Epoch, Version: stable.Version + 1}
			for range 2 {
				if l.Place() != want || l.Contents().Len() != 4 {
					t.Errorf("%v with %d entries, want %v", l.Place(), l.Contents().Len(), want)
				}
				if then, err := l.At(stable); err != nil || sum(then.Contents) != sum(entries(t, 3)) {
					t.Errorf("version %v: %v", stable, err)
				}
				s.Close()
				var damaged error
				if s, l, damaged = open(t, dir, private); damaged != nil {
					t.Fatal(damaged)
				}
			}
		})
	}
}

// TestHistory goes through a new base and a new epoch, and reads it all again.
func TestHistory(t *testing.T) {
	private := newKey(t)
	dir := t.TempDir()
	s, l, _ := open(t, dir, private)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	contents := entries(t, 3)
	expires := make(map[key.Key]time.Time)
	for k := range contents.All() {
		expires[k] = at
		break
	}
	if _, err := l.Commit(Change{Contents: contents, Expires: expires}); err != nil {
		t.Fatal(err)
	}
	if changed, err := l.Commit(Change{Contents: contents, Expires: expires}); err != nil || changed {
		t.Error("the same contents are a version", err)
	}
	if err := l.Rebase(); err != nil {
		t.Fatal(err)
	}
	commit(t, l, 5) // of which none expires
	var seen []uint64
	if err := l.Deltas(0, func(to uint64, message []byte) error {
		d, err := wire.OpenDelta(private.Public().(ed25519.PublicKey), message)
		if err == nil && d.To != to {
			err = fmt.Errorf("delta to %d, want %d", d.To, to)
		}
		seen = append(seen, to)
		return err
	}); err != nil || len(seen) != 1 || seen[0] != l.Place().Version {
		t.Errorf("deltas %v, %v", seen, err)
	}
	before := l.Place()
	if err := s.NewEpoch(0); err != nil {
		t.Fatal(err)
	}
	if l.Place().Epoch <= before.Epoch || l.Place().Version != 1 || l.Contents().Len() != 5 {
		t.Errorf("%v with %d entries", l.Place(), l.Contents().Len())
	}
	last := uint64(0)
	for range 3 {
		p, err := s.NextCatalog()
		if err != nil || p.Version <= last {
			t.Fatal(p, err)
		}
		last = p.Version
	}
	place, checksum := l.Place(), sum(l.Contents())
	s.Close()
	s, l, damaged := open(t, dir, private)
	if damaged != nil || l.Place() != place || sum(l.Contents()) != checksum || len(l.Expires()) != 0 {
		t.Errorf("%v, %v; want %v", l.Place(), damaged, place)
	}
	if p, err := s.NextCatalog(); err != nil || p.Version <= last {
		t.Errorf("catalog %v after %d, %v", p, last, err)
	}
	if _, _, err := s.List("../x"); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Error(err)
	}
}

// A list that cannot enter a new epoch does not keep the others from it, and enters it later: with
// versions after all that may be on disk.
func TestEnter(t *testing.T) {
	private, dir := newKey(t), t.TempDir()
	s, drop, _ := open(t, dir, private)
	lists := map[string]*List{"drop": drop}
	for _, name := range []string{"a", "z"} {
		l, _, err := s.List(name)
		if err != nil {
			t.Fatal(err)
		}
		lists[name] = l
	}
	for _, l := range lists {
		commit(t, l, 3)
	}
	before := s.Epoch()
	obstacle := drop.basePath(1) + ".new"
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.NewEpoch(0); err == nil || s.Epoch() == before {
		t.Fatalf("epoch %d, %v", s.Epoch(), err)
	}
	if entered, err := s.Enter("drop"); err == nil || drop.Place().Epoch != before {
		t.Errorf("%v, %v: list drop is at %v", entered, err, drop.Place())
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	for name, l := range lists {
		entered, err := s.Enter(name)
		if err != nil || entered != (name == "drop") || l.Place() != (wire.Place{Epoch: s.Epoch(), Version: 1}) || l.Contents().Len() != 3 {
			t.Errorf("%v, %v: list %s is at %v with %d entries", entered, err, name, l.Place(), l.Contents().Len())
		}
	}
	// One whose base may be on disk, in a later version.
	if err := s.NewEpoch(0); err != nil {
		t.Fatal(err)
	}
	drop.place.Epoch, drop.stray = before, wire.Place{Epoch: s.Epoch(), Version: 4}
	if entered, err := s.Enter("drop"); err != nil || !entered || drop.Place() != (wire.Place{Epoch: s.Epoch(), Version: 4}) {
		t.Errorf("%v, %v: list drop is at %v", entered, err, drop.Place())
	}
	if entered, err := s.Enter("none"); err != nil || entered {
		t.Error("a list that is not open has entered", err)
	}
}

// again opens a store and its list after a crash.
func again(dir string, private ed25519.PrivateKey) (*Store, *List, error) {
	s, err := Open(dir, private)
	if err != nil {
		return nil, nil, err
	}
	l, damaged, err := s.List("drop")
	if err = errors.Join(err, damaged); err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, l, nil
}

// TestDurable lets the machine crash, and steps fail, while versions, bases and an epoch
// are made. After a crash the last version that was committed is there, or a whole one
// after it, and no version number stands for two contents.
func TestDurable(t *testing.T) {
	long.Seconds(t)
	synctest.Test(t, testDurable) // the time stands still, so that the same work makes the same files
}

func testDurable(t *testing.T) {
	private := newKey(t)
	type version struct {
		place   wire.Place
		entries int
	}
	var done []version // acknowledged
	sets := make([]*list.Set, 9)
	for n := range sets {
		sets[n] = entries(t, n)
	}
	crash.Test{
		Begin: "0",
		Work: func(t *testing.T, d *crash.Disk) {
			dir := filepath.Join(d.Dir, "store")
			done = nil
			var s *Store
			var l *List
			last := 0
			do := func(n int, change func() error) {
				if d.Do(change, fmt.Sprint(n)) == nil {
					last = n
					done = append(done, version{l.Place(), n})
				}
				if l != nil && l.Contents().Len() != last {
					t.Errorf("%d entries, want %d", l.Contents().Len(), last)
				}
			}
			open := func() {
				for range 4 {
					if do(last, func() (err error) { s, l, err = again(dir, private); return err }); l != nil {
						return
					}
				}
				t.Fatal("it cannot be opened")
			}
			commit := func(n int) {
				do(n, func() error { _, err := l.Commit(Change{Contents: sets[n]}); return err })
			}
			open()
			commit(1)
			commit(2)
			do(last, func() error {
				if before := l.Base().Place; l.Rebase() != nil || l.Base().Place == before {
					return errors.New("there is no new base")
				}
				return nil
			})
			commit(3)
			do(4, func() error { // as with a delta that is too long
				next := wire.Place{Epoch: l.Place().Epoch, Version: max(l.Place().Version, l.stray.Version) + 1}
				_, err := l.commitBase(next, Change{Contents: sets[4]})
				return err
			})
			commit(5)
			do(last, func() error { return s.NewEpoch(0) })
			commit(6)
			s.Close()
			if !d.Fails() { // else what was not acknowledged may be there
				open()
				commit(7)
				s.Close()
			}
		},
		Read: func(t *testing.T, dir string, n int) (string, error) {
			s, l, err := again(filepath.Join(dir, "store"), private)
			if err != nil {
				return "", err
			}
			defer s.Close()
			found := l.Contents().Len()
			if sum(l.Contents()) != sum(sets[found]) {
				t.Errorf("other entries than the first %d", found)
			}
			for _, v := range done[:n] {
				if v.place == l.Place() && v.entries != found || l.Place().Before(v.place) {
					t.Errorf("version %v with %d entries after %v with %d", l.Place(), found, v.place, v.entries)
				}
			}
			return fmt.Sprint(found), nil
		},
	}.Run(t)
}

// TestDurableState does the same with what a store has beside its lists.
func TestDurableState(t *testing.T) {
	private := newKey(t)
	var catalogs []uint64 // after each change that was acknowledged
	crash.Test{
		Begin: "0",
		Work: func(t *testing.T, d *crash.Disk) {
			catalogs = nil
			last, extra := uint64(0), 0
			do := func(x int, change func() error) error {
				err := d.Do(change, fmt.Sprint(x))
				if err == nil {
					extra, catalogs = x, append(catalogs, last)
				}
				return err
			}
			for range 2 {
				var s *Store
				for range 4 {
					if do(extra, func() (err error) { s, err = Open(d.Dir, private); return err }) == nil {
						break
					}
				}
				if s == nil {
					t.Fatal("it cannot be opened")
				}
				catalog := func() error {
					p, err := s.NextCatalog()
					if p.Version < s.state.Reserved { // or the disk was full
						last = max(last, p.Version)
					}
					return err
				}
				for do(extra+1, func() error { return s.SetExtra(extra + 1) }) != nil {
				}
				for range 2 {
					_ = do(extra, catalog) // if it fails, the next one has the number
				}
				s.Close()
			}
		},
		Read: func(t *testing.T, dir string, n int) (string, error) {
			s, err := Open(dir, private)
			if err != nil {
				return "", err
			}
			defer s.Close()
			if p, err := s.NextCatalog(); err != nil || n > 0 && p.Version <= catalogs[n-1] {
				t.Errorf("catalog %v after %d, %v", p, catalogs[:n], err)
			}
			extra := 0
			err = s.Extra(&extra)
			return fmt.Sprint(extra), err
		},
	}.Run(t)
}

// A catalog that the clock has passed is no proof of a later history: the next one has a
// higher number.
func TestUsedFollowsTheClock(t *testing.T) {
	s, _, _ := open(t, t.TempDir(), newKey(t))
	c, err := s.NextCatalog()
	if err != nil {
		t.Fatal(err)
	}
	s.Now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	later := wire.Place{Epoch: c.Epoch, Version: c.Version + uint64(time.Hour.Milliseconds())}
	if s.Used().Before(later) {
		t.Errorf("%v is before %v, at %v", s.Used(), later, s.Now())
	}
	if next, err := s.NextCatalog(); err != nil || !later.Before(next) {
		t.Errorf("next %v, %v", next, err)
	}
}

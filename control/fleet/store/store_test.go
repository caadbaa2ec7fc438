package store

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/snapshot"
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
		e, err := list.ParseEntry(fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
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
	private := newKey(t)
	dir := t.TempDir()
	s, l, _ := open(t, dir, private)
	var ends []int64
	for i := range 4 {
		commit(t, l, i+1)
		ends = append(ends, l.size)
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

// TestDamaged changes bytes of what is stored: that is noticed, and begins a new epoch,
// in which no version number stands for two contents.
func TestDamaged(t *testing.T) {
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
	if l.log, err = os.OpenFile(l.logPath(l.Base().Place), os.O_RDWR, 0o600); err != nil {
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

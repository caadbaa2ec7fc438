package membership

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/filter/hash"
	"weir/filter/key"
)

var hosts4 = key.Shape{SrcBits: 32}

// adoptLayout is a layout for keys of hosts4, with weights.
func adoptLayout(t testing.TB, keys int) Layout {
	t.Helper()
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: keys}, MarkedSrc24: 1}, Approximate, 12, hash.NewSecret(hash.Seed{7}))
	if err != nil {
		t.Fatal(err)
	}
	l.PlanHot(100)
	return l
}

// hostColumn is a column of IPv4 sources.
func hostColumn(addresses []uint32) Column {
	c := Column{Shape: hosts4, Lists: make([]uint16, len(addresses))}
	for _, a := range addresses {
		c.Keys = append(c.Keys, 0, 32, 0, 0)
		c.Keys = binary.BigEndian.AppendUint32(c.Keys, a)
	}
	return c
}

func hostKey(a uint32) key.Key {
	k, err := key.Parse(hostColumn([]uint32{a}).Keys)
	if err != nil {
		panic(err)
	}
	return k
}

// sharedMemory maps a file as the memory of a layout.
func sharedMemory(t testing.TB, l *Layout, path string) Memory {
	t.Helper()
	m := l.Alloc()
	parts := []*[]uint64{&m.Lines, &m.Marks4, &m.Hot, &m.Counters, &m.Record}
	words := 0
	for _, p := range parts {
		words += len(*p)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(8 * words)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 8*words, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	all := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), words)
	for _, p := range parts {
		*p, all = all[:len(*p):len(*p)], all[len(*p):]
	}
	return m
}

const (
	adoptKeys    = 20_000 // listed at first
	adoptChanged = 4_000  // of them and as many others come and go
)

func adoptAddresses() []uint32 {
	all := make([]uint32, adoptKeys)
	for i := range all {
		all[i] = uint32(i) * 977
	}
	return all
}

// The process that TestAdoptKilled kills.
func TestAdoptHelper(t *testing.T) {
	path := os.Getenv("WEIR_TEST_ADOPT")
	if path == "" {
		return
	}
	seed, _ := strconv.Atoi(os.Getenv("WEIR_TEST_SEED"))
	weights := os.Getenv("WEIR_TEST_WEIGHTS") != ""
	l := adoptLayout(t, adoptKeys)
	listed := make(map[uint32]bool)
	for _, a := range adoptAddresses() {
		listed[a] = true
	}
	s, _, err := Adopt(l, sharedMemory(t, &l, path), []Column{hostColumn(adoptAddresses())}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	s.Listed = func(k key.Key) bool { a := k.Src.As4(); return listed[binary.BigEndian.Uint32(a[:])] }
	os.Stdout.WriteString("ready\n")
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	for {
		a := uint32(rng.IntN(2*adoptChanged))*977 + uint32(rng.IntN(2))*(adoptKeys*977+1)
		k := hostKey(a)
		switch {
		case weights && rng.IntN(2) == 0:
			_ = s.SetWeight(k, rng.IntN(10)) // full buckets are no error
			if rng.IntN(50) == 0 {
				s.Settle()
			}
		case listed[a]:
			s.Remove(k)
			delete(listed, a)
		default:
			if s.Add(k, 1) == nil {
				listed[a] = true
			}
		}
	}
}

// However often a process is killed in the middle of changes, the next one adopts the
// set, and has exactly the bits and counters of one that is built from the list anew.
// With weights, bits that they have added to listed keys may be set besides.
func TestAdoptKilled(t *testing.T) {
	for _, weights := range []string{"", "1"} {
		name := map[string]string{"": "entries", "1": "weights"}[weights]
		t.Run(name, func(t *testing.T) {
			l := adoptLayout(t, adoptKeys)
			path := filepath.Join(t.TempDir(), "memory")
			m := sharedMemory(t, &l, path)
			s, err := NewSet(l, m)
			if err != nil {
				t.Fatal(err)
			}
			columns := []Column{hostColumn(adoptAddresses())}
			if err := s.Fill(columns); err != nil {
				t.Fatal(err)
			}
			want, err := NewSet(l, l.Alloc())
			if err != nil {
				t.Fatal(err)
			}
			if err := want.Fill(columns); err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(8, 9))
			interrupted, steps := 0, make(map[int]bool)
			for i := range 40 {
				c := exec.Command(os.Args[0], "-test.run=^TestAdoptHelper$")
				c.Env = append(os.Environ(), "WEIR_TEST_ADOPT="+path, "WEIR_TEST_SEED="+strconv.Itoa(i), "WEIR_TEST_WEIGHTS="+weights)
				out, err := c.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond)
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = c.Wait() // it was killed
				if head := s.record.head[0]; head != 0 {
					interrupted++
					steps[int(head&stepMask)] = true
				}
				s, changed, err := Adopt(l, m, columns, func() {})
				if err != nil {
					t.Fatal(err)
				}
				if changed > 4*adoptChanged {
					t.Fatalf("%d keys were to be changed", changed)
				}
				for _, a := range adoptAddresses() {
					if _, ok := s.Lookup(hostKey(a)); !ok {
						t.Fatalf("%v is not found", hostKey(a))
					}
				}
				if weights == "" {
					compareSets(t, s, want)
				} else if missing := missingBits(s, want); missing > 0 {
					t.Fatalf("%d bits are missing", missing)
				}
			}
			t.Logf("%d of 40 kills interrupted a change, at %d different steps", interrupted, len(steps))
			if interrupted == 0 {
				t.Error("no kill interrupted a change")
			}
		})
	}
}

func compareSets(t *testing.T, s, want *Set) {
	t.Helper()
	if !slices.Equal(s.cascade.words, want.cascade.words) {
		t.Fatal("the bits differ")
	}
	for i := range s.cascade.counters.Len() {
		if got, want := s.cascade.counters.Get(i), want.cascade.counters.Get(i); got != want {
			t.Fatalf("counter %d is %d, want %d", i, got, want)
		}
	}
	if added, removed, ok := s.record.keys.Minus(want.record.keys).List(); !ok || len(added)+len(removed) > 0 {
		t.Fatal("the records differ")
	}
	if s.Len() != want.Len() || s.Keys(hosts4) != want.Keys(hosts4) {
		t.Fatalf("%d keys, want %d", s.Len(), want.Len())
	}
}

// missingBits counts the bits and counts of want that s does not have.
func missingBits(s, want *Set) (n int) {
	for i, w := range want.cascade.words {
		if w&^s.cascade.words[i] != 0 {
			n++
		}
	}
	for i := range s.cascade.counters.Len() {
		if s.cascade.counters.Get(i) < want.cascade.counters.Get(i) {
			n++
		}
	}
	return n
}

// A change that is interrupted after any of its stores is finished: the memory after
// each of them becomes that after the change.
func TestAdoptInterrupted(t *testing.T) {
	l := adoptLayout(t, 100)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		m := l.Alloc()
		s, err := NewSet(l, m)
		if err != nil {
			t.Fatal(err)
		}
		addresses := make([]uint32, 200)
		for i := range addresses {
			addresses[i] = rng.Uint32()
		}
		if err := s.Fill([]Column{hostColumn(addresses)}); err != nil {
			t.Fatal(err)
		}
		h := hostKey(rng.Uint32()).Hash(l.Secret)
		kind := adding
		if rng.IntN(2) == 0 {
			h, kind = hostKey(addresses[0]).Hash(l.Secret), removing
		}
		after := clone(m)
		done := mustRecord(t, l, after)
		done.change(kind, h)
		bits := l.First + l.Rest
		for step := range bits + 9 {
			for stores := range 3 {
				at := clone(m)
				r := mustRecord(t, l, at)
				r.head[1] = h
				for i := range step { // those that were made
					word, next, p := r.step(kind, h, i)
					r.head[2+i&1], r.head[0] = *word, kind|uint64(i)
					*word = next
					if i < bits && r.cascade.counters.Get(p) == 0 {
						r.cascade.clear(p/64, p%64)
					} else if i < bits {
						r.cascade.set(p/64, p%64)
					}
				}
				word, next, p := r.step(kind, h, step)
				r.head[2+step&1] = *word
				if stores > 0 {
					r.head[0] = kind | uint64(step)
				}
				if stores > 1 {
					if kind == adding && step < bits {
						r.cascade.set(p/64, p%64)
					}
					*word = next // and not yet the bit that may have to go
				}
				if err := r.finish(); err != nil {
					t.Fatal(err)
				}
				want := after
				if step == 0 && stores == 0 {
					want = m // it had not begun
				}
				if !slices.Equal(at.Lines, want.Lines) || !slices.Equal(at.Counters, want.Counters) ||
					!slices.Equal(at.Record[recordHead:], want.Record[recordHead:]) || at.Record[0] != 0 {
					t.Fatalf("kind %d: interrupted at step %d after %d stores: not as after the change", kind>>32, step, stores)
				}
			}
		}
	}
}

func mustRecord(t *testing.T, l Layout, m Memory) *record {
	t.Helper()
	s, err := NewSet(l, m)
	if err != nil {
		t.Fatal(err)
	}
	return s.record
}

func clone(m Memory) Memory {
	for _, p := range []*[]uint64{&m.Lines, &m.Marks4, &m.Hot, &m.Counters, &m.Record} {
		*p = slices.Clone(*p)
	}
	return m
}

// What cannot be adopted is refused, and nothing changes.
func TestAdoptRefuses(t *testing.T) {
	l := adoptLayout(t, 30_000)
	m := l.Alloc()
	s, err := NewSet(l, m)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]uint32, 30_000)
	for i := range many {
		many[i] = uint32(i)
	}
	if err := s.Fill([]Column{hostColumn(many[:10])}); err != nil {
		t.Fatal(err)
	}
	flows := Column{Shape: key.Shape{SrcBits: 32, DstBits: 32}, Lists: make([]uint16, 1), Keys: make([]byte, 12)}
	full := hostColumn(make([]uint32, l.Capacity+1))
	for name, c := range map[string]struct {
		column Column
		want   error
	}{
		"other entries": {hostColumn(many), ErrDifferent},
		"other shapes":  {flows, ErrNoRoom},
		"too many":      {full, ErrNoRoom},
	} {
		before := clone(m)
		if _, _, err := Adopt(l, m, []Column{c.column}, func() {}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if !slices.Equal(before.Lines, m.Lines) || !slices.Equal(before.Record, m.Record) {
			t.Errorf("%s: the memory has changed", name)
		}
	}
	for name, damage := range map[string]func(*Memory){
		"step":    func(m *Memory) { m.Record[0] = adding | 1000 },
		"kind":    func(m *Memory) { m.Record[0] = 7 << 32 },
		"table":   func(m *Memory) { m.Record[100]++ },
		"cascade": func(m *Memory) { clear(m.Lines) },
	} {
		damaged := clone(m)
		damage(&damaged)
		if _, _, err := Adopt(l, damaged, []Column{hostColumn(nil)}, func() {}); err == nil {
			t.Errorf("a damaged %s is adopted", name)
		}
	}
	if _, changed, err := Adopt(l, m, []Column{hostColumn(many[5:20])}, func() {}); err != nil || changed != 15 {
		t.Errorf("%d entries changed, %v, want 15", changed, err)
	}
	exact := l
	exact.Mode = Exact
	if _, _, err := Adopt(exact, m, nil, func() {}); err == nil {
		t.Error("an exact set is adopted")
	}
}

// BenchmarkAdopt adopts ten million entries.
func BenchmarkAdopt(b *testing.B) {
	const n = 10_000_000
	l := adoptLayout(b, n)
	m := l.Alloc()
	s, err := NewSet(l, m)
	if err != nil {
		b.Fatal(err)
	}
	addresses := make([]uint32, n)
	for i := range addresses {
		addresses[i] = uint32(i) * 101
	}
	columns := []Column{hostColumn(addresses)}
	if err := s.Fill(columns); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, changed, err := Adopt(l, m, columns, func() {}); err != nil || changed > 0 {
			b.Fatal(changed, err)
		}
	}
}

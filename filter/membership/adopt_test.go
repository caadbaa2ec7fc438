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
	"weir/tests/long"
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
	parts := []*[]uint64{&m.Lines, &m.Marks4, &m.Hot}
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
	l := adoptLayout(t, adoptKeys)
	m := sharedMemory(t, &l, path)
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	for {
		listed := make(map[uint32]bool)
		var addresses []uint32
		for i, a := range adoptAddresses() { // those that come and go: half of them
			if i < 2*adoptChanged && rng.IntN(2) == 0 {
				continue
			}
			addresses = append(addresses, a)
			listed[a] = true
		}
		s, _, err := Adopt(l, m, []Column{hostColumn(addresses)}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		s.Listed = func(k key.Key) bool { a := k.Src.As4(); return listed[binary.BigEndian.Uint32(a[:])] }
		os.Stdout.WriteString("ready\n")
		for range rng.IntN(20_000) {
			n := rng.IntN(2 * adoptChanged)
			a := uint32(n)*977 + uint32(rng.IntN(2))*(adoptKeys*977+1)
			k := hostKey(a)
			switch {
			case rng.IntN(3) == 0: // also of those that stay
				_ = s.SetWeight(hostKey(a+uint32(rng.IntN(2))*2*adoptChanged*977), rng.IntN(10)) // full buckets are no error
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
}

// However often a process is killed in the middle of changes, of weights or of an adoption,
// no key that all of them list ever tests negative, and the next process that adopts the set
// has exactly the bits and counters of one that is built from the list anew.
func TestAdoptKilled(t *testing.T) {
	long.Seconds(t)
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
	present := func(s *Set, addresses []uint32) {
		t.Helper()
		for _, a := range addresses {
			if _, ok := s.Lookup(hostKey(a)); !ok {
				t.Fatalf("%v is not found", hostKey(a))
			}
		}
	}
	rng := rand.New(rand.NewPCG(8, 9))
	differed := 0
	for i := range 40 {
		c := exec.Command(os.Args[0], "-test.run=^TestAdoptHelper$")
		c.Env = append(os.Environ(), "WEIR_TEST_ADOPT="+path, "WEIR_TEST_SEED="+strconv.Itoa(i))
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
		left, err := NewSet(l, m)
		if err != nil {
			t.Fatal(err)
		}
		present(left, adoptAddresses()[2*adoptChanged:])
		s, changed, err := Adopt(l, m, columns, func() {})
		if err != nil {
			t.Fatal(err)
		}
		if changed > 0 {
			differed++
		}
		present(s, adoptAddresses())
		compareSets(t, s, want)
	}
	if differed < 30 {
		t.Errorf("%d of 40 processes left another set behind: the test shows too little", differed)
	}
}

func compareSets(t *testing.T, s, want *Set) {
	t.Helper()
	if !slices.Equal(s.memory.Lines, want.memory.Lines) {
		t.Fatal("the bits differ")
	}
	if !s.cascade.Equal(want.cascade) {
		t.Fatal("the counters differ")
	}
	if s.Len() != want.Len() || s.Keys(hosts4) != want.Keys(hosts4) || s.hot.len != want.hot.len {
		t.Fatalf("%d keys and %d weights, want %d and %d", s.Len(), s.hot.len, want.Len(), want.hot.len)
	}
}

// While a set is adopted, a key that the memory had and the set is to have never tests
// negative, also for programs that have read a weight before it is gone, and end before
// grace returns.
func TestAdoptReaders(t *testing.T) {
	l := adoptLayout(t, adoptKeys)
	m := l.Alloc()
	s, err := NewSet(l, m)
	if err != nil {
		t.Fatal(err)
	}
	all := adoptAddresses()
	both, before, after := all[8000:12_000], all[:12_000], all[8000:]
	if err := s.Fill([]Column{hostColumn(before)}); err != nil {
		t.Fatal(err)
	}
	s.Listed = func(key.Key) bool { return true }
	weights := make(map[uint64]int)
	for i, a := range both[:100] {
		if h := hostKey(a).Hash(l.Secret); s.SetWeight(hostKey(a), 1+i%MaxExtra) == nil {
			weights[h] = s.Weight(h)
		}
	}
	read := func(when string) {
		reader, err := NewSet(l, m)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range both {
			h := hostKey(a).Hash(l.Secret)
			if !reader.cascade.Contains(h) || !reader.cascade.ContainsExtra(h, weights[h]) {
				t.Fatalf("%v is not found %s", hostKey(a), when)
			}
		}
	}
	waited := false
	if _, changed, err := Adopt(l, m, []Column{hostColumn(after)}, func() { read("before programs have ended"); waited = true }); err != nil || changed == 0 || !waited {
		t.Fatalf("%d bits changed, waited %v: %v", changed, waited, err)
	}
	clear(weights)
	read("then")
	if len(s.raised) < 50 {
		t.Errorf("%d weights", len(s.raised))
	}
}

func clone(m Memory) Memory {
	for _, p := range []*[]uint64{&m.Lines, &m.Marks4, &m.Hot} {
		*p = slices.Clone(*p)
	}
	return m
}

// What cannot be adopted is refused, and nothing changes. All else is adopted, whatever the
// memory contains.
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
	for name, column := range map[string]Column{"other shapes": flows, "too many": full} {
		before := clone(m)
		if _, _, err := Adopt(l, m, []Column{column}, func() {}); !errors.Is(err, ErrNoRoom) {
			t.Errorf("%s: %v, want %v", name, err, ErrNoRoom)
		}
		if !slices.Equal(before.Lines, m.Lines) || !slices.Equal(before.Marks4, m.Marks4) {
			t.Errorf("%s: the memory has changed", name)
		}
	}
	short := m
	short.Lines = short.Lines[1:]
	if _, _, err := Adopt(l, short, nil, func() {}); err == nil {
		t.Error("memory of another size is adopted")
	}
	exact := l
	exact.Mode = Exact
	if _, _, err := Adopt(exact, m, nil, func() {}); err == nil {
		t.Error("an exact set is adopted")
	}
	want, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	if err := want.Fill([]Column{hostColumn(many)}); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]uint64){
		"kept": func([]uint64) {}, "cleared": func(w []uint64) { clear(w) },
		"random": func(w []uint64) {
			for i := range w {
				w[i] = uint64(i) * 0x9e3779b97f4a7c15
			}
		},
	} {
		damaged := clone(m)
		damage(damaged.Lines)
		damage(damaged.Hot)
		s, _, err := Adopt(l, damaged, []Column{hostColumn(many)}, func() {})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		compareSets(t, s, want)
		for _, a := range many {
			s.Remove(hostKey(a))
		}
		if set, _ := s.cascade.Bits(); set > 0 {
			t.Errorf("%s: %d bits stay", name, set)
		}
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

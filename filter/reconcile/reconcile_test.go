package reconcile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/must"
)

const seed = 20020819

var start = time.Date(2002, 8, 19, 0, 0, 0, 0, time.UTC)

func standard(m uint32, k int) bloom.Geometry { return must.Have(bloom.Standard(m, k)) }

// numbers returns the set of the decimal numbers from…to−1.
func numbers(from, to int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := from; i < to && yield(fmt.Append(nil, i)); i++ {
		}
	}
}

func filterOf(g bloom.Geometry, set iter.Seq[[]byte]) *bloom.Filter {
	f := bloom.New(g, seed)
	for b := range set {
		f.Add(b)
	}
	return f
}

func number(t *testing.T, b []byte) int {
	var i int
	if _, err := fmt.Sscan(string(b), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// A has 0…649 999; B has 500 000…1 149 999 and sends its filter. The difference
// contains no common element, and misses elements of A alone at the
// false-positive rate within 10 %; the intersection contains all common
// elements, and exactly those extra ones that the difference misses.
func TestDifferenceAndIntersection(t *testing.T) {
	const n, alone = 650_000, 500_000
	g := standard(8*n, 5)
	theirs := filterOf(g, numbers(alone, alone+n))
	rate := g.FalsePositiveRate(n)
	if need := trial.Count(rate, 0.1); need > alone {
		t.Fatalf("%d elements are too few to judge, need %d", alone, need)
	}

	sent := 0
	for e := range Difference(numbers(0, n), theirs) {
		if number(t, e) >= alone {
			t.Fatalf("%s is in both sets", e)
		}
		sent++
	}
	trial.Check(t, alone-sent, alone, rate)

	both, extra := 0, 0
	for e := range Intersection(numbers(0, n), theirs) {
		if number(t, e) >= alone {
			both++
		} else {
			extra++
		}
	}
	if both != n-alone {
		t.Errorf("%d of %d common elements found", both, n-alone)
	}
	if extra != alone-sent {
		t.Errorf("%d extra elements in the intersection, %d missing in the difference", extra, alone-sent)
	}
}

func TestSequencesStop(t *testing.T) {
	f := filterOf(standard(1000, 3), numbers(0, 10))
	for b := range Intersection(numbers(0, 10), f) {
		if string(b) != "0" {
			t.Fatalf("first element %s", b)
		}
		break
	}
	if n := len(slices.Collect(Difference(numbers(0, 10), f))); n != 0 {
		t.Errorf("a set differs from itself by %d elements", n)
	}
}

// change inserts and deletes a few random elements of 0…9999.
func change(t testing.TB, p *Publisher, rng *rand.Rand, inserted map[int]bool) {
	for range 200 {
		i := rng.IntN(10_000)
		b := fmt.Append(nil, i)
		if inserted[i] {
			if !p.Remove(b) {
				t.Fatal("an element cannot be removed")
			}
		} else {
			p.Add(b)
		}
		inserted[i] = !inserted[i]
	}
}

func TestReplicaFollows(t *testing.T) {
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	p := NewPublisher(standard(100_000, 5), seed, 1)
	r := NewReplica(100_000, time.Minute)
	inserted := make(map[int]bool)
	deltas := 0
	for round := range 100 {
		change(t, p, rng, inserted)
		msg := p.Publish()
		if msg[5] == kindDelta {
			deltas++
		}
		now := start.Add(time.Duration(round) * time.Second)
		if err := r.Apply(msg, now); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if !r.filter.Equal(p.set.Bits()) {
			t.Fatalf("round %d: the replica differs", round)
		}
		for i, in := range inserted {
			if in && r.Lookup(fmt.Append(nil, i), now) != Present {
				t.Fatalf("round %d: %d is missing", round, i)
			}
		}
	}
	if epoch, version := r.Version(); epoch != 1 || version != 100 {
		t.Errorf("epoch %d, version %d", epoch, version)
	}
	if deltas != 99 {
		t.Errorf("%d deltas in 100 messages, want all but the first", deltas)
	}
}

// A delta takes the entropy of the changed bits plus a header; if everything
// changes, the filter itself is sent.
func TestDeltaIsSmall(t *testing.T) {
	const m = 1 << 20
	g := standard(m, 5)
	p := NewPublisher(g, seed, 1)
	for b := range numbers(0, 100_000) {
		p.Add(b)
	}
	full := p.Publish()
	before := p.set.Bits()
	for b := range numbers(100_000, 100_100) {
		p.Add(b)
	}
	delta := p.Publish()
	changed := float64(p.set.Bits().Ones() - before.Ones())
	q := changed / m
	want := -m * (q*math.Log2(q) + (1-q)*math.Log2(1-q)) / 8
	t.Logf("filter %d bytes; %.0f bits changed: delta %d bytes, entropy %.1f", len(full), changed, len(delta), want)
	if got := float64(len(delta)); got > want+headerLen+4+checksumLen+2 || got < want {
		t.Errorf("delta of %v bytes, entropy %.1f", got, want)
	}
	unchanged := p.Publish()
	if len(unchanged) != headerLen+4+checksumLen {
		t.Errorf("an update without changes has %d bytes", len(unchanged))
	}

	sparse := NewPublisher(standard(m, 5), seed, 1)
	for b := range numbers(0, 100) {
		sparse.Add(b)
	}
	sparse.Publish()
	for b := range numbers(0, 100) {
		if !sparse.Remove(b) {
			t.Fatal("an element cannot be removed")
		}
	}
	if msg := sparse.Publish(); msg[5] != kindFull {
		t.Error("deleting everything was sent as a delta; the empty filter is smaller")
	}
}

func TestGapsAndOldMessages(t *testing.T) {
	p := NewPublisher(standard(10_000, 5), seed, 7)
	var msgs [][]byte
	for i := range 4 {
		p.Add(fmt.Append(nil, i))
		msgs = append(msgs, p.Publish())
	}
	snapshot := p.Snapshot()
	reborn := NewPublisher(standard(20_000, 6), seed+1, 8)
	reborn.Add([]byte("x"))
	rebornFirst := reborn.Publish()
	rebornSecond := reborn.Publish()

	for _, c := range []struct {
		name string
		msgs [][]byte // in order; all but the last must apply
		want error
	}{
		{"first message missed", [][]byte{msgs[1]}, ErrGap},
		{"message missed", [][]byte{msgs[0], msgs[2]}, ErrGap},
		{"message twice", [][]byte{msgs[0], msgs[1], msgs[1]}, ErrOld},
		{"older message", [][]byte{msgs[0], msgs[1], msgs[0]}, ErrOld},
		{"snapshot fills a gap", [][]byte{msgs[0], snapshot}, nil},
		{"snapshot at the start", [][]byte{snapshot}, nil},
		{"snapshot of the present version", [][]byte{msgs[0], msgs[1], msgs[2], msgs[3], snapshot}, ErrOld},
		{"delta of the next epoch", [][]byte{msgs[0], rebornSecond}, ErrGap},
		{"filter of the next epoch", [][]byte{msgs[0], rebornFirst}, nil},
		{"delta after the filter of the next epoch", [][]byte{msgs[0], rebornFirst, rebornSecond}, nil},
		{"message of the previous epoch", [][]byte{rebornFirst, snapshot}, ErrOld},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReplica(100_000, time.Minute)
			last := len(c.msgs) - 1
			for i, m := range c.msgs[:last] {
				if err := r.Apply(m, start); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			before := *r
			err := r.Apply(c.msgs[last], start.Add(time.Second))
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if err != nil && *r != before {
				t.Error("a rejected message changed the replica")
			}
		})
	}
}

func TestStaleness(t *testing.T) {
	p := NewPublisher(standard(1000, 5), seed, 1)
	p.Add([]byte("in"))
	r := NewReplica(1000, time.Minute)
	if a := r.Lookup([]byte("in"), start); a != Unknown {
		t.Errorf("before the first update: %v", a)
	}
	if err := r.Apply(p.Publish(), start); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		b    string
		age  time.Duration
		want Answer
	}{
		{"in", 0, Present}, {"out", 0, Absent},
		{"in", time.Minute, Present}, {"out", time.Minute, Absent},
		{"in", time.Minute + 1, Unknown}, {"out", time.Minute + 1, Unknown},
	} {
		if a := r.Lookup([]byte(c.b), start.Add(c.age)); a != c.want {
			t.Errorf("%q after %v is %v, want %v", c.b, c.age, a, c.want)
		}
	}
	// An update without changes makes it fresh again.
	if err := r.Apply(p.Publish(), start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if a := r.Lookup([]byte("in"), start.Add(time.Hour)); a != Present {
		t.Errorf("after an empty update: %v", a)
	}
}

func TestReplicaLimitsMemory(t *testing.T) {
	msg := NewPublisher(standard(1000, 3), seed, 1).Publish()
	if err := NewReplica(999, time.Minute).Apply(msg, start); err == nil {
		t.Error("a filter of 1000 bits was accepted with a limit of 999")
	}
	if err := NewReplica(1000, time.Minute).Apply(msg, start); err != nil {
		t.Error(err)
	}
}

// sealed returns b with a valid checksum, so that decoding gets past it.
func sealed(b []byte) []byte {
	if len(b) < checksumLen {
		return b
	}
	body := slices.Clone(b[:len(b)-checksumLen])
	return binary.LittleEndian.AppendUint64(body, hash.Sum(0, body))
}

// pair returns a replica at version 1 and the delta to version 2.
func pair() (*Replica, []byte) {
	p := NewPublisher(standard(1000, 5), seed, 1)
	for i := range 50 {
		p.Add(fmt.Append(nil, i))
	}
	r := NewReplica(1<<16, time.Minute)
	if err := r.Apply(p.Publish(), start); err != nil {
		panic(err)
	}
	p.Add([]byte("more"))
	return r, p.Publish()
}

// malformed returns one mutation for each reason to reject an update.
func malformed() map[string][]byte {
	_, valid := pair()
	set := func(offset int, v byte) []byte {
		b := slices.Clone(valid)
		b[offset] = v
		return sealed(b)
	}
	return map[string][]byte{
		"empty":           nil,
		"short":           valid[:headerLen+checksumLen-1],
		"no bits":         sealed(valid[:headerLen+checksumLen]),
		"magic":           set(0, 'X'),
		"version":         set(4, 2),
		"kind":            set(5, 2),
		"reserved":        set(6, 1),
		"k is 0":          set(25, 0),
		"m is too large":  set(31, 0x40),
		"other m":         set(28, 1),
		"other seed":      set(32, 1),
		"other k":         set(25, 4),
		"sum":             set(40, valid[40]+1),
		"ones":            set(48, valid[48]+1),
		"code":            set(55, valid[55]+1),
		"delta as filter": set(5, kindFull),
		"checksum":        append(slices.Clone(valid[:len(valid)-1]), valid[len(valid)-1]+1),
	}
}

func TestApplyRejects(t *testing.T) {
	for what, b := range malformed() {
		r, valid := pair()
		before := *r
		err := r.Apply(b, start)
		if err == nil || errors.Is(err, ErrGap) || errors.Is(err, ErrOld) {
			t.Errorf("%s: error %v", what, err)
		}
		if other := strings.HasPrefix(what, "other"); other != errors.Is(err, bloom.ErrIncompatible) {
			t.Errorf("%s: incompatible %v: %v", what, !other, err)
		}
		t.Logf("%s: %v", what, err)
		if *r != before {
			t.Errorf("%s: the replica changed", what)
		}
		if err := r.Apply(valid, start); err != nil {
			t.Errorf("%s: the right message no longer applies: %v", what, err)
		}
	}
}

func FuzzApply(f *testing.F) {
	_, valid := pair()
	f.Add(valid)
	for _, b := range malformed() {
		f.Add(b)
	}
	p := NewPublisher(standard(100, 2), seed, 2)
	f.Add(p.Publish())
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealed(b)} {
			r, _ := pair()
			before := *r
			if err := r.Apply(b, start); err != nil {
				if *r != before {
					t.Fatal("a rejected message changed the replica")
				}
				continue
			}
			if r.epoch < before.epoch || r.epoch == before.epoch && r.version <= before.version {
				t.Fatalf("version went from %d.%d to %d.%d", before.epoch, before.version, r.epoch, r.version)
			}
			if sum(r.filter) != binary.LittleEndian.Uint64(b[40:]) {
				t.Fatal("the filter is not the one announced")
			}
		}
	})
}

func BenchmarkReconcile(b *testing.B) {
	f := filterOf(standard(1_600_000, 11), numbers(0, 100_000))
	set := slices.Collect(numbers(50_000, 150_000))
	b.Run("op=difference", func(b *testing.B) {
		for b.Loop() {
			for range Difference(slices.Values(set), f) {
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(set)), "ns/element")
	})
}

func BenchmarkSummary(b *testing.B) {
	p := NewPublisher(standard(1<<20, 5), seed, 1)
	r := NewReplica(1<<20, time.Minute)
	rng := rand.New(rand.NewPCG(seed, 0))
	inserted := make(map[int]bool)
	change(b, p, rng, inserted)
	first := p.Publish()
	change(b, p, rng, inserted)
	delta := p.Publish()
	if err := r.Apply(first, start); err != nil {
		b.Fatal(err)
	}
	at := *r
	b.Run("op=publish", func(b *testing.B) {
		for b.Loop() {
			p.Publish()
		}
	})
	b.Run("op=apply", func(b *testing.B) {
		for b.Loop() {
			*r = at
			if err := r.Apply(delta, start); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=query", func(b *testing.B) {
		e := []byte("1234")
		for b.Loop() {
			r.Lookup(e, start)
		}
	})
}

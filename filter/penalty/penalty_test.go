package penalty

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

func newTable(t testing.TB, buckets int) *Table {
	t.Helper()
	table, err := NewTable(make([]uint64, buckets*BucketWords))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestNewTable(t *testing.T) {
	for _, words := range []int{0, 1, BucketWords + 1} {
		if _, err := NewTable(make([]uint64, words)); err == nil {
			t.Errorf("%d words were accepted", words)
		}
	}
}

// In any time, the rate times the time passes, plus the burst at the start,
// whatever the gaps between packets.
func TestLimit(t *testing.T) {
	const seconds = 5
	random := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct{ rate, burst, units float64 }{
		{1000, 10, 1}, {1000, 100, 1}, {7, 3, 1}, {1e5, 1000, 1}, {125e6, 1e6, 1500},
	} {
		table := newTable(t, 4)
		if !table.Set(77, Penalty{Until: time.Hour, Rate: test.rate, Burst: test.burst}) {
			t.Fatal("no room")
		}
		var passed float64
		offered := 5 * test.rate / test.units // packets a second
		for now := time.Duration(0); now < seconds*time.Second; now += time.Duration(random.Float64() * 2e9 / offered) {
			if table.Check(77, uint64(test.units), now) == None {
				passed += test.units
			}
		}
		want := test.rate*seconds + test.burst
		if math.Abs(passed-want) > 0.01*want+2*test.units {
			t.Errorf("%+v: %.0f units passed, want %.0f", test, passed, want)
		}
	}
}

func TestBlockEnds(t *testing.T) {
	table := newTable(t, 1)
	table.Set(5, Penalty{Until: time.Second})
	for _, test := range []struct {
		now  time.Duration
		h    uint64
		want Verdict
	}{
		{0, 5, Blocked}, {time.Second - 1, 5, Blocked}, {time.Second, 5, None}, {0, 6, None},
	} {
		if got := table.Check(test.h, 1, test.now); got != test.want {
			t.Errorf("flow %d at %v: %v, want %v", test.h, test.now, got, test.want)
		}
	}
}

// Replacing a penalty does not refill its bucket.
func TestSetAgain(t *testing.T) {
	table := newTable(t, 1)
	p := Penalty{Until: time.Hour, Rate: 1, Burst: 1}
	table.Set(5, p)
	if table.Check(5, 1, 0) != None || table.Check(5, 1, 1) != Limited {
		t.Fatal("the limit is not one per second")
	}
	table.Set(5, p)
	if table.Check(5, 1, 2) != Limited {
		t.Error("the replacement has refilled the bucket")
	}
	if table.Len() != 1 {
		t.Errorf("%d penalties", table.Len())
	}
}

func TestRoom(t *testing.T) {
	table := newTable(t, 1)
	p := Penalty{Until: time.Second}
	for h := range uint64(Slots) {
		if !table.Set(h+1, p) {
			t.Fatalf("no room for penalty %d", h+1)
		}
	}
	if table.Set(99, p) {
		t.Error("a ninth penalty in a bucket of eight")
	}
	table.Remove(3)
	table.Remove(3)
	if table.Len() != Slots-1 || !table.Set(99, p) || table.Check(99, 1, 0) != Blocked || table.Check(3, 1, 0) != None {
		t.Error("the room of a removed penalty is not used")
	}
	table.Set(1, Penalty{Until: time.Hour})
	table.Expire(time.Second)
	if table.Len() != 1 || table.Check(1, 1, time.Second) != Blocked {
		t.Errorf("%d penalties after all but one have expired", table.Len())
	}
	// A new table adopts the penalties in its memory.
	if again, err := NewTable(table.words); err != nil || again.Len() != 1 {
		t.Errorf("%v, %v", again, err)
	}
}

func TestCap(t *testing.T) {
	table := newTable(t, 2)
	for h := range uint64(10) {
		table.Set(h+1, Penalty{Until: time.Duration(h) * time.Minute})
	}
	table.Cap(5 * time.Minute)
	for h, until := range table.All() {
		if want := min(time.Duration(h-1), 5) * time.Minute; until != want {
			t.Errorf("penalty %d ends at %v, want %v", h, until, want)
		}
	}
}

// The longest prefix that has a limit decides, packets or bytes are counted, and a limit ends.
func TestLimits(t *testing.T) {
	now := time.Second
	l := &Limits{Now: func() time.Duration { return now }}
	set := func(prefix string, burst float64, bytes bool, until time.Duration) {
		l.Set(netip.MustParsePrefix(prefix), Limit{Penalty{Until: until, Rate: 1, Burst: burst}, bytes})
	}
	set("192.0.2.0/24", 3, false, time.Hour)
	set("192.0.2.7/32", 1000, true, time.Minute)
	set("2001:db8::/32", 2, false, time.Hour)
	passed := func(src string, length uint64) (n int) {
		for range 100 {
			if l.Check(netip.MustParseAddr(src), length) == None {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		src    string
		length uint64
		want   int
	}{
		{"192.0.2.7", 100, 10}, {"192.0.2.8", 100, 3}, {"192.0.2.9", 100, 0}, {"192.0.3.1", 100, 100}, {"2001:db8:9::1", 60, 2}, {"2001:db9::1", 60, 100},
	} {
		if got := passed(c.src, c.length); got != c.want {
			t.Errorf("%d packets of %s passed, want %d", got, c.src, c.want)
		}
	}
	// What has ended does not fall back on the network's limit.
	if now = time.Minute; passed("192.0.2.7", 100) != 100 {
		t.Error("a limit has not ended")
	}
	if got := passed("192.0.2.8", 100); got != 3 {
		t.Errorf("after a minute, %d packets passed", got)
	}
}

package attach

import (
	"math"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
)

// build builds an engine of a list to block and one to allow.
func build(t *testing.T, c engine.Config) *engine.Generation {
	t.Helper()
	g, err := engine.Reference([]engine.List{
		{Name: "l", Direction: engine.Both, Contents: parse(t, "192.0.2.1\n198.51.100.0/24\n2001:db8::/32\n")},
		{Name: "ours", Allow: true, Direction: engine.Both, Contents: parse(t, "198.51.100.9\n")},
	}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func TestDescribe(t *testing.T) {
	lists := []List{{Name: "l", Entries: 3}, {Name: "ours", Allow: true, Entries: 1}}
	var c engine.Config
	c.FailsafePorts = []verdict.FailsafePort{{Proto: 6, Port: 22}}
	c.FailsafePrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	exact := Describe(build(t, c), c, lists)
	if exact.Entries != 4 || exact.Mode != "exact" || len(exact.Shapes) == 0 || exact.BitsPerEntry != 0 ||
		!slices.Equal(exact.FailsafePorts, []string{"tcp/22"}) || !slices.Equal(exact.FailsafePrefixes, []string{"10.0.0.0/8"}) {
		t.Errorf("%+v", exact)
	}
	// Two probes of a family, one bucket with four keys in it.
	if p := exact.Predicted; !(p > math.Exp2(-48) && p < 1e-12) {
		t.Errorf("false positives in exact mode: %g", p)
	}
	c.Mode, c.BitsPerKey = membership.Approximate, 10
	approximate := build(t, c)
	m := Describe(approximate, c, lists)
	if !(m.Predicted > exact.Predicted && m.Predicted < 0.1) || m.BitsPerEntry != 10 {
		t.Errorf("approximate mode: %+v", m)
	}
	// A change in place changes entries and rate.
	lists = slices.Clone(lists)
	lists[0].Entries = 7
	var added []key.Key
	for i := range byte(200) {
		added = append(added, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 32)))
	}
	if _, err := approximate.Apply([]engine.Change{{List: 1, Delta: list.Delta{Add: list.SetOf(added...)}}}); err != nil {
		t.Fatal(err)
	}
	if next := m.Changed(approximate, lists); next.Entries != 8 || m.Entries != 4 || next.Predicted <= m.Predicted {
		t.Errorf("%d entries and a rate of %v after a change, %d and %v before", next.Entries, next.Predicted, m.Entries, m.Predicted)
	}
}

// A list counts from the value that its counter had when the list was added,
// whichever list had that number before.
func TestInheritCounters(t *testing.T) {
	counter := func(n uint64) loader.Counter { return loader.Counter{Packets: n, Bytes: 100 * n} }
	since := time.Now().Add(-time.Hour)
	old := Metadata{Since: since, Lists: []List{{Name: "a"}, {Name: "b", Before: counter(3)}}}
	d := Metadata{Since: time.Now(), Lists: []List{{Name: "c"}, {Name: "b"}, {Name: "d"}}}
	d.InheritCounters(old, []loader.Counter{counter(0), counter(10), counter(20), counter(0)})
	if !d.Since.Equal(since) {
		t.Errorf("since %v, want %v", d.Since, since)
	}
	now := []loader.Counter{counter(0), counter(15), counter(25), counter(1)}
	want := []ListCount{{"c", Count(counter(5))}, {"b", Count(counter(22))}, {"d", Count(counter(1))}}
	if got := byList(d, false, now); !reflect.DeepEqual(got, want) {
		t.Errorf("by list: %v, want %v", got, want)
	}
	now[0] = counter(7) // approximate mode
	if got := byList(d, false, now); got[0] != (ListCount{"", Count(counter(7))}) {
		t.Errorf("by no list: %v", got[0])
	}
}

// Counters of another layout are not inherited.
func TestInheritNewCounters(t *testing.T) {
	old := Metadata{Lists: []List{{Name: "a", Before: loader.Counter{Packets: 7}}}}
	d := Metadata{Lists: []List{{Name: "a"}}}
	d.InheritCounters(old, nil)
	if got := byList(d, false, []loader.Counter{{}, {Packets: 2}})[0].Packets; got != 2 {
		t.Errorf("%d packets, want 2", got)
	}
}

func TestCompatibleCounters(t *testing.T) {
	d := Metadata{CountedReasons: []string{"a", "b"}}
	for _, c := range []struct {
		old  []string
		want bool
	}{
		{nil, true}, {[]string{"a"}, true}, {[]string{"a", "b", "c"}, true}, {[]string{"b"}, false}, {[]string{"a", "c"}, false},
	} {
		if got := d.CompatibleCounters(Metadata{CountedReasons: c.old}); got != c.want {
			t.Errorf("counters of %q go on: %v", c.old, got)
		}
	}
}

func TestAlive(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for pid, want := range map[int]bool{0: false, 1 << 30: false, os.Getpid(): true, cmd.Process.Pid: false} {
		if got := Alive(pid); got != want {
			t.Errorf("process %d: %v", pid, got)
		}
	}
}

func TestDrops(t *testing.T) {
	for _, c := range []struct {
		reason verdict.Reason
		m      Metadata
		want   bool
	}{
		{verdict.Blocked, Metadata{}, true},
		{verdict.Clean, Metadata{}, false},
		{verdict.Malformed, Metadata{}, false},
		{verdict.Malformed, Metadata{DropMalformed: true}, true},
		{verdict.Truncated, Metadata{DropMalformed: true, Monitor: true}, false},
		{verdict.WouldBlock, Metadata{Monitor: true}, false},
	} {
		if got := c.m.Drops(c.reason); got != c.want {
			t.Errorf("%v under %+v: %v", c.reason, c.m, got)
		}
	}
}

// Frames that are not IP are shown by type, the most frequent first, and behind them those of other types.
func TestNotIP(t *testing.T) {
	one, two := loader.Counter{Packets: 1, Bytes: 60}, loader.Counter{Packets: 2, Bytes: 120}
	got := notIP(loader.EtherTypes{ByType: map[uint16]loader.Counter{0x88cc: one, 0x0806: two, 0x0842: one}, Others: one})
	want := []string{"0x0806", "0x0842", "0x88cc", packet.OtherEtherTypes}
	for i, c := range got {
		n := one
		if i == 0 {
			n = two
		}
		if len(got) != len(want) || c.EtherType != want[i] || c.Count != Count(n) {
			t.Fatalf("%+v, want %q", got, want)
		}
	}
	if got := notIP(loader.EtherTypes{}); got == nil || len(got) > 0 {
		t.Errorf("of no frames: %#v", got)
	}
}

package status

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
)

func describe(t *testing.T, r ruleset.Rules) Description {
	t.Helper()
	l, err := r.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := engine.Reference(l.Lists(), r.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return Describe(l, g)
}

func rules(t *testing.T) ruleset.Rules {
	t.Helper()
	dir := t.TempDir()
	r := ruleset.Rules{Direction: engine.Both, Lenient: true}
	for _, f := range []struct {
		to         *[]string
		name, text string
	}{
		{&r.Block, "one.txt", "192.0.2.1\n198.51.100.0/24\n"},
		{&r.Block, "two.txt", "2001:db8::/32\n"},
		{&r.Allow, "ours.txt", "198.51.100.9\n"},
	} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
			t.Fatal(err)
		}
		*f.to = append(*f.to, path)
	}
	return r
}

// What is written at an attachment is enough to have the rules back.
func TestDescriptionHoldsTheRules(t *testing.T) {
	r := rules(t)
	r.Mode, r.BitsPerKey = membership.Approximate, 12
	r.MaxBad = 0.25
	r.Monitor, r.DropMalformed, r.DropLooped = true, true, true
	r.FailsafePorts = []verdict.FailsafePort{{Proto: 6, Port: 22}}
	r.FailsafePrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	noZero(t, "Rules", reflect.ValueOf(r))
	described := describe(t, r)
	described.Loop = &Loop{Drop: r.DropLooped}
	b, err := described.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var d Description
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	got, err := d.Rules()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("rules %+v, want %+v", got, r)
	}
}

// noZero fails for a field that the test leaves at zero, where it could not tell
// whether it is held.
func noZero(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	if v.Kind() != reflect.Struct {
		if v.IsZero() {
			t.Errorf("%s is zero", name)
		}
		return
	}
	switch v.Type() {
	case reflect.TypeFor[engine.Telemetry](), reflect.TypeFor[engine.Multicast]():
		return // no rule: it is the running weir's own
	}
	for i := range v.NumField() {
		noZero(t, name+"."+v.Type().Field(i).Name, v.Field(i))
	}
}

func TestDescribe(t *testing.T) {
	exact := describe(t, rules(t))
	if exact.Entries != 4 || exact.Mode != "exact" || len(exact.Shapes) == 0 || len(exact.Lists) != 3 || !exact.Lists[2].Allow {
		t.Errorf("%+v", exact)
	}
	// Two probes of a family, one bucket with four keys in it.
	if p := exact.FalsePositiveRate; !(p > math.Exp2(-48) && p < 1e-12) {
		t.Errorf("false positives in exact mode: %g", p)
	}
	r := rules(t)
	r.Mode, r.BitsPerKey = membership.Approximate, 10
	if p := describe(t, r).FalsePositiveRate; !(p > exact.FalsePositiveRate && p < 0.1) {
		t.Errorf("false positives in approximate mode: %g", p)
	}
}

// A list counts from where its counter stood when it came, whatever list had
// that number before.
func TestSucceed(t *testing.T) {
	counter := func(n uint64) loader.Counter { return loader.Counter{Packets: n, Bytes: 100 * n} }
	since := time.Now().Add(-time.Hour)
	old := Description{Since: since, Lists: []List{{Name: "a"}, {Name: "b", Before: counter(3)}}}
	d := Description{Since: time.Now(), Lists: []List{{Name: "c"}, {Name: "b"}, {Name: "d"}}}
	d.Succeed(old, []loader.Counter{counter(0), counter(10), counter(20), counter(0)})
	if !d.Since.Equal(since) {
		t.Errorf("since %v, want %v", d.Since, since)
	}
	now := []loader.Counter{counter(0), counter(15), counter(25), counter(1)}
	want := []ListCount{{"c", Count(counter(5))}, {"b", Count(counter(22))}, {"d", Count(counter(1))}}
	if got := byList(d, now); !reflect.DeepEqual(got, want) {
		t.Errorf("by list: %v, want %v", got, want)
	}
	now[0] = counter(7) // approximate mode
	if got := byList(d, now); got[0] != (ListCount{"", Count(counter(7))}) {
		t.Errorf("by no list: %v", got[0])
	}
}

// Lists of one name from different files are two lists.
func TestSucceedOtherFile(t *testing.T) {
	old := Description{Lists: []List{{Name: "feed", File: "/a/feed.txt"}}}
	d := Description{Lists: []List{{Name: "feed", File: "/b/feed.txt"}}}
	d.Succeed(old, []loader.Counter{{}, {Packets: 7}})
	if got := d.Lists[0].Before.Packets; got != 7 {
		t.Errorf("the counter begins at %d, want 7", got)
	}
}

// Counters of another layout are not taken over, and what stood on them before
// is of no account.
func TestSucceedNewCounters(t *testing.T) {
	old := Description{Lists: []List{{Name: "a", Before: loader.Counter{Packets: 7}}}}
	d := Description{Lists: []List{{Name: "a"}}}
	d.Succeed(old, nil)
	if got := byList(d, []loader.Counter{{}, {Packets: 2}})[0].Packets; got != 2 {
		t.Errorf("%d packets, want 2", got)
	}
}

func TestCounts(t *testing.T) {
	d := Description{CountedReasons: []string{"a", "b"}}
	for _, c := range []struct {
		old  []string
		want bool
	}{
		{nil, true}, {[]string{"a"}, true}, {[]string{"a", "b", "c"}, true}, {[]string{"b"}, false}, {[]string{"a", "c"}, false},
	} {
		if got := d.Counts(Description{CountedReasons: c.old}); got != c.want {
			t.Errorf("counters of %q go on: %v", c.old, got)
		}
	}
}

func TestEmptied(t *testing.T) {
	before := []List{{File: "/a", Entries: 3}, {File: "/b"}, {File: "/c", Entries: 1, Allow: true}}
	for _, c := range []struct {
		now  []List
		want string
	}{
		{[]List{{File: "/c", Allow: true}}, "/c"},
		{[]List{{File: "/b"}, {File: "/c"}, {File: "/d"}}, ""},
		{[]List{{File: "/b"}, {File: "/a"}}, "/a"},
		{[]List{{File: "/a", Entries: 1}}, ""},
	} {
		if l, found := Emptied(c.now, before); l.File != c.want || found != (c.want != "") {
			t.Errorf("%+v: %+v, %v", c.now, l, found)
		}
	}
}

// What Room allows can be described.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	r := rules(t)
	r.Block = nil
	for n := 0; Room(r) == nil; n++ {
		path := filepath.Join(dir, fmt.Sprintf("list-%d.txt", n))
		if err := os.WriteFile(path, []byte("192.0.2.1\n2001:db8::1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Block = append(r.Block, path)
	}
	if err := Room(r).Error(); !strings.Contains(err, fmt.Sprint(len(r.Block)+1, " lists")) {
		t.Errorf("%d lists, %s", len(r.Block)+1, err)
	}
	if len(r.Block) < 100 {
		t.Errorf("room for %d lists only", len(r.Block))
	}
	r.Block = r.Block[1:]
	b, err := describe(t, r).Encode()
	if err != nil || len(b) > loader.MetadataSize {
		t.Errorf("%d bytes, %v", len(b), err)
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
		d      Description
		want   bool
	}{
		{verdict.Blocked, Description{}, true},
		{verdict.Clean, Description{}, false},
		{verdict.Malformed, Description{}, false},
		{verdict.Malformed, Description{DropMalformed: true}, true},
		{verdict.Truncated, Description{DropMalformed: true, Monitor: true}, false},
		{verdict.Monitored, Description{Monitor: true}, false},
	} {
		if got := c.d.Drops(c.reason); got != c.want {
			t.Errorf("%v under %+v: %v", c.reason, c.d, got)
		}
	}
}

package status

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"weir/control/generation"
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
	g, err := generation.Reference(l.Store, r.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return Describe(l, g)
}

func rules(t *testing.T) ruleset.Rules {
	t.Helper()
	dir := t.TempDir()
	r := ruleset.Rules{Direction: generation.Both, Lenient: true}
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
	r.Monitor, r.DropMalformed = true, true
	r.FailsafePorts = []verdict.FailsafePort{{Proto: 6, Port: 22}}
	r.FailsafePrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	b, err := describe(t, r).Encode()
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

func TestDescribe(t *testing.T) {
	exact := describe(t, rules(t))
	if exact.Entries != 4 || exact.Mode != "exact" || len(exact.Shapes) == 0 || len(exact.Lists) != 3 || !exact.Lists[2].Allow {
		t.Errorf("%+v", exact)
	}
	if p := exact.FalsePositiveRate; !(p > 0 && p < 1e-12) {
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

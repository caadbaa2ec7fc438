package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/seed"
)

// After each reload, of lists and settings that change at random, the daemon has the entries of a
// fresh start, and decides alike; where only contents have changed, mostly by the same engine.
func TestReloadEqualsStart(t *testing.T) {
	t.Parallel() // it waits a lot
	random := seed.New(t)
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	var files []string
	for i := range 3 {
		files = append(files, feedFile(t, fmt.Sprintf("list%d.txt", i), "192.0.2.1\n"))
	}
	r.lists(t, files...)
	pool := make([]string, 60)
	for i := range pool {
		pool[i] = netip.AddrFrom4([4]byte{198, 18, byte(i), byte(random.IntN(256))}).String()
		if i%4 == 0 {
			pool[i] = fmt.Sprintf("198.18.%d.0/%d", i, 24+random.IntN(8))
		}
		if i%7 == 0 {
			pool[i] = fmt.Sprintf("2001:db8:%x::/48", i)
		}
	}
	some := func() string {
		var b strings.Builder
		for _, e := range pool {
			if random.IntN(3) == 0 {
				b.WriteString(e + "\n")
			}
		}
		return b.String() + "192.0.2.1\n"
	}
	d := begin(t, r)
	inPlace, reloads := 0, 30
	for n := range reloads {
		last, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + random.IntN(3) {
			switch random.IntN(7) {
			case 0: // the list has another feed then
				r.change(func(c *config.Config) {
					l := &c.Lists[random.IntN(len(c.Lists))]
					l.Interval = quantity.Duration(time.Hour + time.Duration(random.IntN(1000))*time.Second)
				})
			case 1:
				r.change(func(c *config.Config) {
					l := &c.Lists[random.IntN(len(c.Lists))]
					l.Action = map[config.Action]config.Action{config.Block: config.Allow, config.Allow: config.Block}[l.Action]
				})
			case 2:
				r.change(func(c *config.Config) { c.Monitor = !c.Monitor })
			case 3:
				e := pool[random.IntN(len(pool))]
				if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Remove: random.IntN(2) == 0, Entries: []string{e}}); err != nil {
					t.Fatal(err)
				}
			default:
				write(t, files[random.IntN(len(files))], some())
			}
		}
		c, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		same := c.Monitor == last.Monitor && slices.EqualFunc(c.Lists, last.Lists, func(a, b config.List) bool { return a.Action == b.Action })
		before := number(t, d.Daemon)
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		switch kept := number(t, d.Daemon) == before; {
		case kept && !same:
			t.Errorf("reload %d: another configuration has this engine", n)
		case kept:
			inPlace++
		}
		fresh, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		var now []engine.List
		if err := d.loop.Do(t.Context(), func() error { now = d.active.engine.Lists(); return nil }); err != nil {
			t.Fatal(err)
		}
		if now, want := texts(now), texts(fresh.Rules); !slices.Equal(now, want) {
			t.Fatalf("reload %d: the lists are\n%v, want\n%v", n, now, want)
		}
		reference, err := fresh.Build()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range pool {
			a, _, _ := strings.Cut(e, "/")
			q, err := explain.ParseQuestion(a)
			if err != nil {
				t.Fatal(err)
			}
			if now, want := verdictOf(t, d.Daemon, a) == verdict.Drop, explain.Answers(reference, q[0], nil)[0].Verdict == explain.Drop; now != want {
				t.Fatalf("reload %d: %s is dropped: %t, want %t", n, a, now, want)
			}
		}
		if err := reference.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d reloads went into the engine that there was", inPlace, reloads)
	if inPlace == 0 { // the others had no room there, or another configuration
		t.Error("no reload went into the engine that there was")
	}
}

// number returns the number of a daemon's engine.
func number(t *testing.T, d *Daemon) (n int) {
	t.Helper()
	if err := d.loop.Do(t.Context(), func() error { n = d.active.number; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// texts returns lists with their entries, in order.
func texts(lists []engine.List) (all []string) {
	for _, l := range lists {
		var entries []string
		for k := range l.Contents.All() {
			entries = append(entries, k.String())
		}
		slices.Sort(entries)
		all = append(all, fmt.Sprint(l.Name, l.Allow, entries))
	}
	return all
}

// A reload that is to be confirmed leaves the engine before it as it was, also where only
// contents have changed: it is the way back.
func TestConfirmKeepsEngine(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	var before *engine.Generation
	if err := d.loop.Do(t.Context(), func() error { before = d.active.engine; return nil }); err != nil {
		t.Fatal(err)
	}
	write(t, string(r.c.Lists[0].Sources[0].File), secondSource+"\n")
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := d.loop.Do(t.Context(), func() error {
		if u := d.reloads.unconfirmed; u == nil || u.kept.Generation != before || d.active.engine == before {
			t.Errorf("%+v: there is no way back", u)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first, second := verdictOf(t, d.Daemon, firstSource), verdictOf(t, d.Daemon, secondSource); first != verdict.Pass || second != verdict.Drop {
		t.Errorf("%s: %v, %s: %v", firstSource, first, secondSource, second)
	}
}

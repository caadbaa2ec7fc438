package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// verdictOf returns what becomes of packets from an address.
func verdictOf(t *testing.T, d *Daemon, from string) verdict.Action {
	t.Helper()
	asked, err := explain.ParseQuestion(from)
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := d.api.Explainer.Ask(t.Context(), asked) // without asking the hub whose entries match
	if err != nil {
		t.Fatal(err)
	}
	if a[0].Verdict == explain.Drop {
		return verdict.Drop
	}
	return verdict.Pass
}

// An expired entry that could not be removed is removed later, also where the
// list's feed has changed meanwhile.
func TestBehind(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{cleanSource}}); err != nil {
		t.Fatal(err)
	}
	if err := d.loop.doAlone(t.Context(), func() error { // as expire leaves it where the change fails
		l := d.active.prepared.List("feed")
		l.Behind, d.backlog.retry = true, time.Now().Add(time.Hour)
		k := key.Source(netip.PrefixFrom(netip.MustParseAddr(cleanSource), 32))
		return d.journal.Apply([]journal.Change{{Remove: true, Entry: journal.Entry{List: "feed", Key: k}}})
	}); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, cleanSource); got != verdict.Drop {
		t.Fatalf("the entry is gone: %v", got)
	}
	write(t, string(r.c.Lists[0].Sources[0].File), firstSource+"\n"+secondSource+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := d.loop.Do(t.Context(), func() error { return d.catchUpAll(time.Now()) }); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, cleanSource); got != verdict.Pass {
		t.Errorf("the expired entry is active: %v", got)
	}
	if got := verdictOf(t, d.Daemon, secondSource); got != verdict.Drop {
		t.Errorf("the new entry is not active: %v", got)
	}
}

// What an operator undoes by a return to earlier contents passes at once. What the source leaves out
// later stays for the list's TTL again.
func TestUndoneDoesNotLinger(t *testing.T) {
	t.Parallel()
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	d := begin(t, r)
	read := func(text string) {
		t.Helper()
		write(t, file, text)
		if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	check := func(when, address string, want verdict.Action) {
		t.Helper()
		if got := verdictOf(t, d.Daemon, address); got != want {
			t.Errorf("%s: %s: %v, want %v", when, address, got, want)
		}
	}
	const added = "10.9.0.1"
	read(firstSource + "\n" + secondSource + "\n")
	read(firstSource + "\n" + secondSource + "\n" + added + "\n")
	check("bad", added, verdict.Drop)
	if one, err := d.api.Rollback(t.Context(), "feed"); err != nil || one.Error != "" {
		t.Fatalf("%+v, %v", one, err)
	}
	check("undone", added, verdict.Pass)
	check("undone", secondSource, verdict.Drop)
	read(firstSource + "\n10.9.0.2\n")
	check("corrected", added, verdict.Pass)
	check("corrected", secondSource, verdict.Drop)
}

// What an operator undoes in one source of a list stays where another one has it, and for the list's TTL once
// that one leaves it out by itself. A manual entry stays in any case.
func TestUndoneBesideAnotherSource(t *testing.T) {
	t.Parallel()
	const shared, other, manual = "10.9.0.1", "10.9.0.2", "10.9.0.3"
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	write(t, first, firstSource+"\n"+secondSource+"\n")
	write(t, second, shared+"\n"+other+"\n")
	d := startLists(t, lab.New(t), io.Discard, fmt.Sprintf("lists: {feed: {sources: [{file: %s}, {file: %s}], interval: 1h, ttl: 2h}}", first, second))
	refresh := func() {
		t.Helper()
		if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || slices.ContainsFunc(all, func(o api.FetchOutcome) bool { return o.Error != "" }) {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	check := func(when string, want verdict.Action, addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			if got := verdictOf(t, d, address); got != want {
				t.Errorf("%s: %s: %v, want %v", when, address, got, want)
			}
		}
	}
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{manual}, UID: 7}); err != nil {
		t.Fatal(err)
	}
	write(t, first, firstSource+"\n"+secondSource+"\n"+shared+"\n"+manual+"\n"+cleanSource+"\n")
	refresh()
	check("bad", verdict.Drop, shared, other, manual, cleanSource)
	if one, err := d.api.Rollback(t.Context(), "feed"); err != nil || one.Error != "" {
		t.Fatalf("%+v, %v", one, err)
	}
	check("undone", verdict.Drop, firstSource, secondSource, shared, other, manual)
	check("undone", verdict.Pass, cleanSource)
	write(t, second, "10.9.0.4\n")
	refresh()
	check("left out later", verdict.Drop, shared, other, manual)
	check("left out later", verdict.Pass, cleanSource)
}

// All that was undone passes, whatever else is read, or undone, before the daemon takes it in.
func TestUndoneBeforeTheUpdate(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	const early, late = "10.9.0.1", "10.9.0.2"
	good := firstSource + "\n" + secondSource + "\n"
	for name, then := range map[string]func(t *testing.T, f *feed.Feed, file string) error{
		"another attempt": func(t *testing.T, f *feed.Feed, file string) error {
			write(t, file, firstSource+"\n10.9.0.3\n"+early+"\n")
			_, err := f.Fetch(t.Context())
			return err
		},
		"another rollback": func(t *testing.T, f *feed.Feed, _ string) error {
			_, err := f.Rollback(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "list")
			d := startLists(t, lab.New(t), io.Discard, fmt.Sprintf("lists: {feed: {sources: [{file: %s}], interval: 1h, ttl: 2h}}", file))
			for _, lines := range []string{good, good + early + "\n", good + early + "\n" + late + "\n"} {
				write(t, file, lines)
				if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
					t.Fatalf("%+v, %v", all, err)
				}
			}
			if err := d.loop.doAlone(t.Context(), func() error {
				l := d.active.prepared.List("feed")
				_, err := l.FromFeed.Rollback(t.Context())
				return errors.Join(err, then(t, l.FromFeed, file), d.update(l))
			}); err != nil {
				t.Fatal(err)
			}
			for address, want := range map[string]verdict.Action{
				firstSource: verdict.Drop, secondSource: verdict.Drop, late: verdict.Pass,
				early: map[bool]verdict.Action{false: verdict.Pass, true: verdict.Drop}[name == "another attempt"],
			} {
				if got := verdictOf(t, d, address); got != want {
					t.Errorf("%s: %v, want %v", address, got, want)
				}
			}
		})
	}
}

// What was undone passes also where the journal cannot be written, so that what else has left the feed stays.
func TestUndoneUnrecorded(t *testing.T) {
	t.Parallel()
	const added = "10.9.0.1"
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, firstSource+"\n"+secondSource+"\n")
	d := begin(t, r)
	write(t, file, firstSource+"\n"+secondSource+"\n"+added+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	block := filepath.Join(string(r.c.StateDir), "entries.new")
	if err := errors.Join(os.Mkdir(block, 0o700), os.Remove(journalPath(&r.c))); err != nil { // it cannot be written anew
		t.Fatal(err)
	}
	if err := d.loop.doAlone(t.Context(), func() error {
		l := d.active.prepared.List("feed")
		_, err := l.FromFeed.Rollback(t.Context())
		write(t, file, firstSource+"\n10.9.0.2\n")
		_, failed := l.FromFeed.Fetch(t.Context())
		return errors.Join(err, failed, d.update(l))
	}); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]verdict.Action{firstSource: verdict.Drop, secondSource: verdict.Drop, added: verdict.Pass} {
		if got := verdictOf(t, d.Daemon, address); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if err := d.loop.Do(t.Context(), func() error {
		if !d.active.prepared.List("feed").Stays() {
			t.Error("the journal was written")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What leaves a feed stays for the list's TTL. A manual entry of the same address stays
// as long as its user wants, if that is longer, also after a restart.
func TestLingeringBesideManual(t *testing.T) {
	const ttl = 2 * time.Hour
	const ever, longer, shorter, none = "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(ttl)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, ever+"\n"+longer+"\n"+shorter+"\n"+none+"\n"+firstSource+"\n")
	d := begin(t, r)
	began := time.Now()
	for address, wanted := range map[string]time.Duration{ever: 0, longer: 3 * time.Hour, shorter: time.Hour} {
		if _, err := d.changes.Change(t.Context(), api.Change{
			Action: api.Block, List: "feed", Entries: []string{address}, TTL: wanted.Seconds(), Reason: "by hand", UID: 7,
		}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, file, firstSource+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	ended := time.Now()
	check := func(when string) {
		t.Helper()
		for address, want := range map[string]struct {
			stays  time.Duration // 0: for ever
			reason string
			uid    uint32
		}{
			ever: {0, "by hand", 7}, longer: {3 * time.Hour, "by hand", 7},
			shorter: {ttl, lists.ReasonLeft, api.NoUID}, none: {ttl, lists.ReasonLeft, api.NoUID},
		} {
			e, ok := d.journal.Get("feed", key.Source(netip.PrefixFrom(netip.MustParseAddr(address), 32)))
			// The journal has milliseconds.
			early, late := began.Add(want.stays-time.Millisecond), ended.Add(want.stays+time.Millisecond)
			until := want.stays == 0 && e.Expires.IsZero() || want.stays != 0 && e.Expires.After(early) && e.Expires.Before(late)
			if !ok || !until || e.Reason != want.reason || e.UID != want.uid {
				t.Errorf("%s: %s: %+v, %v, want %+v", when, address, e, ok, want)
			}
			if got := verdictOf(t, d.Daemon, address); got != verdict.Drop {
				t.Errorf("%s: %s: %v", when, address, got)
			}
		}
	}
	check("when it has left the feed")
	d.stop()
	d = begin(t, r)
	check("after a restart")
	if err := d.loop.Do(t.Context(), func() error { return d.expire(ended.Add(ttl + time.Minute)) }); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]verdict.Action{
		ever: verdict.Drop, longer: verdict.Drop, shorter: verdict.Pass, none: verdict.Pass,
	} {
		if got := verdictOf(t, d.Daemon, address); got != want {
			t.Errorf("after the TTL: %s: %v, want %v", address, got, want)
		}
	}
}

// An entry that leaves a feed stays for the list's TTL also where many others are new. Where too many
// leave, none stays, and the log says so.
func TestLingeringOfLargeUpdate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	write(t, file, firstSource+"\n")
	log := &lockedLog{}
	d := startLists(t, lab.New(t), log, fmt.Sprintf("lists: {feed: {sources: [{file: %s}], interval: 1h, ttl: 2h}}", file))
	update := func(lines string) {
		t.Helper()
		write(t, file, lines)
		if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	stays := func(entry string) bool {
		_, ok := d.journal.Get("feed", key.Source(netip.PrefixFrom(netip.MustParseAddr(entry), 32)))
		return ok
	}
	var many strings.Builder
	for i := range maxLingering + 1 {
		fmt.Fprintf(&many, "11.%d.%d.%d\n", i>>16, i>>8&255, i&255)
	}
	update(many.String())
	if !stays(firstSource) || strings.Contains(log.String(), "too many") {
		t.Errorf("an entry does not stay where many are new: %s", log.String())
	}
	update(secondSource + "\n")
	if stays("11.0.0.1") || !strings.Contains(log.String(), "since there are too many") {
		t.Errorf("nothing says that entries do not stay: %s", log.String())
	}
}

// An entry that leaves a feed stays for the list's TTL, and is taken as it is: prefix6 blocks the
// neighbours of addresses that commands add alone.
func TestLingeringIsNotWidened(t *testing.T) {
	const left, beside, added, near = "2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::1", "2001:db8:2::2"
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL, r.c.Lists[0].Prefix6 = quantity.Duration(2*time.Hour), 64
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, left+"\n"+firstSource+"\n")
	d := begin(t, r)
	block := func(entry string) {
		t.Helper()
		if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{entry}}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want verdict.Action, sources ...string) {
		t.Helper()
		for _, s := range sources {
			if got := verdictOf(t, d.Daemon, s); got != want {
				t.Errorf("%s: %s: %v, want %v", when, s, got, want)
			}
		}
	}
	block(added)
	expect("listed", verdict.Drop, left, added, near)
	expect("listed", verdict.Pass, beside)
	write(t, file, firstSource+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, when := range []string{"when it has left the feed", "after a restart"} {
		expect(when, verdict.Drop, left, added, near)
		expect(when, verdict.Pass, beside)
		d.stop()
		d = begin(t, r)
	}
	block(left) // in whose set nothing changes
	expect("when a command adds it", verdict.Drop, left, beside)
}

// An entry that has left a feed does not stay for the TTL once it would cut off the host, also after
// a restart.
func TestLingeringIsGuarded(t *testing.T) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, local+"\n"+firstSource+"\n")
	d := begin(t, r)
	allow := api.Change{Action: api.Allow, Entries: []string{local}}
	change := func() {
		t.Helper()
		if _, err := d.changes.Change(t.Context(), allow); err != nil {
			t.Fatal(err)
		}
	}
	change()
	lookAgain(t, d) // the feed's entry is active, since it is allowed
	write(t, file, firstSource+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	k := key.Source(netip.MustParsePrefix(local))
	stays, ok := d.journal.Get("feed", k)
	if !ok {
		t.Fatal("what has left the feed does not stay")
	}
	allow.Remove, allow.Force = true, true
	change()
	d.stop()
	d = begin(t, r)
	if got := verdictOf(t, d.Daemon, l.A.IPv4.String()); got != verdict.Pass {
		t.Errorf("cut off after a restart: %v", got)
	}
	allow.Remove, allow.Force = false, false
	change()
	if err := d.loop.doAlone(t.Context(), func() error {
		if err := d.journal.Apply([]journal.Change{{Entry: stays}}); err != nil { // a look since the start has removed it
			return err
		}
		_, err := d.apply([]engine.Change{{List: d.active.prepared.List("feed").ManualNumber, Delta: list.Delta{Add: list.SetOf(k)}}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	allow.Remove, allow.Force = true, true
	change()
	lookAgain(t, d)
	if _, ok := d.journal.Get("feed", k); ok {
		t.Error("it stays")
	}
	if got := verdictOf(t, d.Daemon, l.A.IPv4.String()); got != verdict.Pass {
		t.Errorf("cut off: %v", got)
	}
}

// An entry that has left a feed, and does not stay since it would cut off the host, does not come back
// with another engine, beside which other entries change.
func TestLingeringStaysLeftOut(t *testing.T) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	d := begin(t, r)
	k := key.Source(netip.MustParsePrefix(local))
	d.stop()
	j, err := journal.Open(journalPath(&r.c), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	e := journal.Entry{List: "feed", Key: k, Added: now, Expires: now.Add(time.Hour), Reason: lists.ReasonLeft, UID: api.NoUID}
	if err := errors.Join(j.Apply([]journal.Change{{Entry: e}}), j.Close()); err != nil {
		t.Fatal(err)
	}
	d = begin(t, r)
	passes := func(when string) {
		t.Helper()
		if got := verdictOf(t, d.Daemon, l.A.IPv4.String()); got != verdict.Pass {
			t.Errorf("cut off %s: %v", when, got)
		}
	}
	passes("after a restart")
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	hold := func(c chan struct{}) {
		if err := d.loop.Do(t.Context(), func() error { d.loop.held = c; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	hold(held)
	var all sync.WaitGroup
	all.Go(func() { // it takes another engine
		write(t, file, firstSource+"\n2001:db8:5::/48\n")
		if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
			t.Errorf("%+v, %v", all, err)
		}
	})
	wait.For(t, "programs are being loaded", func() (is bool) {
		_ = d.loop.Do(t.Context(), func() error { is = d.loop.stage == loading; return nil })
		return is
	})
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{secondSource}, UID: api.NoUID}); err != nil {
		t.Error(err)
	}
	passes("meanwhile")
	hold(nil)
	release()
	all.Wait()
	passes("with another engine")
	if got := verdictOf(t, d.Daemon, secondSource); got != verdict.Drop {
		t.Errorf("the entry that was added meanwhile: %v", got)
	}
	if err := d.loop.doAlone(t.Context(), func() error {
		l := d.active.prepared.List("feed")
		l.Behind = true
		return d.update(l)
	}); err != nil {
		t.Error(err)
	}
	passes("after a change that is made up for")
}

// What has left a feed while its expiry could not be recorded, as on a full disk, stays no longer than
// the TTL once it can, also where the feed has nothing new, and no shorter where a reload comes first. What would
// cut off the host does not stay.
func TestLingeringUnrecorded(t *testing.T) {
	for _, reload := range []bool{false, true} {
		t.Run(fmt.Sprintf("reload %v", reload), func(t *testing.T) { testLingeringUnrecorded(t, reload) })
	}
}

func testLingeringUnrecorded(t *testing.T, reload bool) {
	const ttl, listed, left = 2 * time.Hour, "10.77.0.5", "10.78.0.5" // peers with other addresses of the host
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(ttl)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, "10.77.0.0/24\n10.78.0.0/24\n"+firstSource+"\n"+secondSource+"\n")
	d := begin(t, r)
	block := filepath.Join(string(r.c.StateDir), "entries.new")
	if err := errors.Join(os.Mkdir(block, 0o700), os.Remove(journalPath(&r.c))); err != nil { // it cannot be written anew
		t.Fatal(err)
	}
	write(t, file, "10.77.0.0/24\n"+firstSource+"\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, c := range []struct{ address, peer string }{{"10.77.0.1/24", listed}, {"10.78.0.1/24", left}} {
		if got := verdictOf(t, d.Daemon, c.peer); got != verdict.Drop {
			t.Errorf("%s: %v", c.peer, got)
		}
		l.B.In(t, func() {
			to, err := netlink.LinkByName(l.B.Iface)
			if err != nil {
				t.Error(err)
				return
			}
			address, err := netlink.ParseAddr(c.address)
			if err := errors.Join(err, netlink.AddrAdd(to, address)); err != nil {
				t.Error(err)
			}
		})
		lookAgain(t, d)
		if got := verdictOf(t, d.Daemon, c.peer); got != verdict.Pass {
			t.Errorf("%s is cut off: %v", c.peer, got)
		}
	}
	if reload {
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if listed, left := verdictOf(t, d.Daemon, listed), verdictOf(t, d.Daemon, left); listed != verdict.Pass || left != verdict.Pass {
			t.Errorf("cut off by a reload: %v, %v", listed, left)
		}
	}
	k := key.Source(netip.PrefixFrom(netip.MustParseAddr(secondSource), 32))
	if _, recorded := d.journal.Get("feed", k); recorded || verdictOf(t, d.Daemon, secondSource) != verdict.Drop {
		t.Errorf("recorded: %v, %v", recorded, verdictOf(t, d.Daemon, secondSource))
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if reload {
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	} else if err := d.loop.doAlone(t.Context(), func() error { return d.catchUpAll(time.Now().Add(time.Hour)) }); err != nil {
		t.Error(err)
	}
	if e, recorded := d.journal.Get("feed", k); !recorded || !lists.Lingers(e) || e.Expires.After(time.Now().Add(ttl)) || e.Expires.Before(before.Add(ttl-time.Second)) {
		t.Errorf("recorded: %v, %+v", recorded, e)
	}
	if got := verdictOf(t, d.Daemon, secondSource); got != verdict.Drop {
		t.Errorf("within the TTL: %v", got)
	}
	if err := d.loop.Do(t.Context(), func() error { return d.expire(time.Now().Add(ttl + time.Minute)) }); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, secondSource); got != verdict.Pass {
		t.Errorf("after the TTL: %v", got)
	}
	if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Drop {
		t.Errorf("still in the feed: %v", got)
	}
}

// What has left a source stays for the TTL, also where a reload reads it first, and where what was
// read beside it takes another engine.
func TestLingeringAtReload(t *testing.T) {
	long.Seconds(t)
	for _, more := range []int{0, 50_000} {
		for name, activate := range map[string]func(*Daemon) error{
			"reassemble": (*Daemon).reassemble,
			"reload": func(d *Daemon) error {
				_, err := d.reconfigureUnconfirmed(d.active.prepared.Config, d.active.prepared.Feeds(), 0)
				return err
			},
			"reload to be confirmed": func(d *Daemon) error {
				_, err := d.reconfigureUnconfirmed(d.active.prepared.Config, d.active.prepared.Feeds(), time.Hour)
				return err
			},
			"rollback": func(d *Daemon) error {
				d.reloads.unconfirmed.until = time.Time{}
				return d.rollBack(time.Now())
			},
		} {
			t.Run(fmt.Sprintf("%s %d", name, more), func(t *testing.T) { testLingeringAtReload(t, more, name == "rollback", activate) })
		}
	}
}

func testLingeringAtReload(t *testing.T, more int, unconfirmed bool, activate func(*Daemon) error) {
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, secondSource+"\n"+firstSource+"\n")
	d := begin(t, r)
	if unconfirmed {
		if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	lines := []byte(firstSource + "\n")
	for i := range more {
		lines = fmt.Appendf(lines, "11.%d.%d.1\n", i/256, i%256)
	}
	unscheduled(t, d.Daemon)
	write(t, file, string(lines))
	if err := d.loop.doAlone(t.Context(), func() error { // it is not activated between
		if _, err := d.active.prepared.List("feed").FromFeed.Fetch(t.Context()); err != nil {
			return err
		}
		return activate(d.Daemon)
	}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{firstSource, secondSource} {
		if got := verdictOf(t, d.Daemon, s); got != verdict.Drop {
			t.Errorf("%s: %v", s, got)
		}
	}
	if e, ok := d.journal.Get("feed", key.Source(netip.PrefixFrom(netip.MustParseAddr(secondSource), 32))); !ok || !lists.Lingers(e) {
		t.Errorf("%+v, %v", e, ok)
	}
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{cleanSource}, UID: api.NoUID}); err != nil {
		t.Error(err)
	}
	if got := verdictOf(t, d.Daemon, cleanSource); got != verdict.Drop {
		t.Errorf("the engine does not change any more: %v", got)
	}
}

// What has left a file stays for the TTL, also where a reload that changes the list reads it first.
func TestLingeringAtChange(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	file := string(r.c.Lists[0].Sources[0].File)
	write(t, file, secondSource+"\n"+firstSource+"\n")
	d := begin(t, r)
	unscheduled(t, d.Daemon) // nothing else reads it
	write(t, file, firstSource+"\n")
	r.change(func(c *config.Config) {
		c.Lists = slices.Clone(c.Lists)
		c.Lists[0].Priority = 3
	})
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{firstSource, secondSource} {
		if got := verdictOf(t, d.Daemon, s); got != verdict.Drop {
			t.Errorf("%s: %v", s, got)
		}
	}
	if e, ok := d.journal.Get("feed", key.Source(netip.PrefixFrom(netip.MustParseAddr(secondSource), 32))); !ok || !lists.Lingers(e) {
		t.Errorf("%+v, %v", e, ok)
	}
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list/listfile"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// A list does not cut off the host from its network: the entry is left out, and
// everybody can see it. It is in the list where the operator says so, or allows the
// network.
func TestListsAreGuarded(t *testing.T) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	neighbour := l.A.IPv4.String()
	r := configure(t, l.B)
	r.lists(t, feedFile(t, "feed.txt", local+"\n"+firstSource+"\n127.0.0.1\n"))
	d := begin(t, r)
	expect := func(when string, want verdict.Action, leftOut int) {
		t.Helper()
		if got := verdictOf(t, d.Daemon, neighbour); got != want {
			t.Errorf("%s: %s: %v", when, neighbour, got)
		}
		if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Drop {
			t.Errorf("%s: the rest of the list is lost: %v", when, got)
		}
		for _, l := range d.readings.Lists().Lists {
			if l.Name == "feed" && len(l.LeftOut) != leftOut {
				t.Errorf("%s: left out: %+v", when, l.LeftOut)
			}
		}
	}
	reload := func() {
		t.Helper()
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect("at the start", verdict.Pass, 1)
	for _, l := range d.readings.Lists().Lists {
		if l.Name == "feed" && (l.LeftOut[0].Entry != local || !strings.Contains(l.LeftOut[0].CutOff, "the connected network "+local) || l.Private != 2) {
			t.Errorf("%+v", l)
		}
	}
	if got := strings.Join(d.active.prepared.Warnings(), "\n"); !strings.Contains(got, "left out: "+local+" would cut off") || !strings.Contains(got, "exclude_private") {
		t.Errorf("warnings: %s", got)
	}
	if got := d.active.prepared.Advice(); len(got) != 1 || !strings.Contains(got[0], "failsafe") {
		t.Errorf("advice: %s", got)
	}
	punishing := *d.active.prepared
	trackers := *punishing.Stages
	trackers.Trackers.Trackers = []tracker.Spec{{Action: tracker.Limit}, {Action: tracker.Block}}
	punishing.Stages = &trackers
	if got := punishing.Advice(); len(got) != 2 || !strings.Contains(got[1], "trackers[1]: action block: who forges") {
		t.Errorf("advice: %s", got)
	}
	write(t, string(r.c.Lists[0].Sources[0].File), local+"\n"+firstSource+"\n"+secondSource+"\n")
	if _, err := d.api.Refresh(t.Context(), "feed", false); err != nil {
		t.Fatal(err)
	}
	expect("after an update", verdict.Pass, 1)

	r.change(func(c *config.Config) { c.Lists[0].AntiLockout = false })
	reload()
	expect("without the protection against lock-out", verdict.Drop, 0)
	r.change(func(c *config.Config) { c.Lists[0].AntiLockout = true })
	reload()
	expect("with the protection against lock-out again", verdict.Pass, 1)

	// What is allowed may be listed, until it is allowed no more.
	allow := api.Change{Action: api.Allow, Entries: []string{local}}
	if _, err := d.changes.Change(t.Context(), allow); err != nil {
		t.Fatal(err)
	}
	for end := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
		left := -1
		for _, l := range d.readings.Lists().Lists {
			if l.Name == "feed" {
				left = len(l.LeftOut)
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an entry is left out that an allow list covers")
		}
	}
	allow.Remove = true
	var bad *api.BadRequest
	if _, err := d.changes.Change(t.Context(), allow); !errors.As(err, &bad) || bad.Entry == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("what holds open the network may go: %v", err)
	}
	if _, err := d.changes.Flush(t.Context(), config.DefaultAllow, api.FlushChange{}); !errors.As(err, &bad) {
		t.Errorf("flush: %v", err)
	}
	if got := verdictOf(t, d.Daemon, neighbour); got != verdict.Pass {
		t.Errorf("cut off: %v", got)
	}
}

// The protection against lock-out follows a list also where a later version of it was refused, which an operator sees until the
// source has something else, and before it is decided about a version.
func TestGuardAfterRefusal(t *testing.T) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	r := configure(t, l.B)
	other := twoSources(t, r, local)
	d := begin(t, r)
	feeds := unscheduled(t, d.Daemon)
	change := func(c api.Change) {
		t.Helper()
		c.Action, c.Entries = api.Allow, []string{local}
		if _, err := d.changes.Change(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, refused bool) {
		t.Helper()
		lookAgain(t, d)
		if got := verdictOf(t, d.Daemon, l.A.IPv4.String()); got != verdict.Pass {
			t.Errorf("%s: cut off: %v", when, got)
		}
		if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Drop {
			t.Errorf("%s: the rest of the list is lost: %v", when, got)
		}
		if err := d.loop.Do(t.Context(), func() error {
			if got := d.active.prepared.List("feed").Refused; (got != nil) != refused {
				t.Errorf("%s: refused: %v", when, got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func() []feed.Outcome {
		t.Helper()
		all, err := feeds[0].Fetch(t.Context()) // as by its schedule
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	change(api.Change{})
	expect("allowed", false)
	refuseTogether(t, d, other)
	expect("too much", true)
	change(api.Change{Remove: true, Force: true})
	expect("allowed no more", true)

	change(api.Change{})
	expect("allowed again", true)
	all := fetch()
	change(api.Change{Remove: true, Force: true})
	expect("allowed no more, and read again", true)
	take := func(all []feed.Outcome) (failed error) {
		for _, o := range all {
			failed = errors.Join(failed, d.feeds.Fetched(t.Context(), feeds[0], o))
		}
		return failed
	}
	if err := take(all); err == nil {
		t.Error("too much is taken")
	}
	expect("refused again", true)

	write(t, other, firstSource+"\n")
	if err := take(fetch()); err != nil {
		t.Error(err)
	}
	expect("the source has what it had", false)
}

// The protection against lock-out also follows a list that cannot be taken in again: that of a fleet, whose source keeps
// what was refused, and one whose source has that again meanwhile.
func TestGuardOfRefused(t *testing.T) {
	for name, refuse := range map[string]func(t *testing.T, d *running, l *ruleset.List){
		"of a fleet": func(t *testing.T, d *running, l *ruleset.List) {
			l.FromFeed, l.From = nil, &behind{contents: setOf(t, strings.Fields(wide)...), kept: make(chan error, 1)}
			if err := d.update(l); l.Refused == nil {
				t.Errorf("not refused: %v", err)
			}
		},
		"read meanwhile": func(t *testing.T, d *running, l *ruleset.List) {
			turn, read := d.loop.next, false
			d.loop.next = func(ctx context.Context, ended <-chan struct{}) (bool, error) {
				if <-ended; !read { // once the list has been looked at
					read = true
					if _, err := l.FromFeed.Fetch(t.Context()); err != nil || !l.FromFeed.Undecided() {
						t.Errorf("not read: %v", err)
					}
				}
				return turn(ctx, ended)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ends := lab.New(t)
			local := netip.PrefixFrom(ends.B.IPv4, 24).Masked()
			r := configure(t, ends.B)
			other := twoSources(t, r, local.String())
			d := begin(t, r)
			unscheduled(t, d.Daemon)
			if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Allow, Entries: []string{local.String()}}); err != nil {
				t.Fatal(err)
			}
			lookAgain(t, d)
			refuseTogether(t, d, other)
			if err := d.loop.doAlone(t.Context(), func() error {
				refuse(t, d, d.active.prepared.List("feed"))
				_, err := d.changes.change([]journal.Change{{Remove: true, Entry: journal.Entry{List: config.DefaultAllow, Allow: true, Key: key.Source(local)}}})
				d.followPeers(time.Now())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if got := verdictOf(t, d.Daemon, ends.A.IPv4.String()); got != verdict.Pass {
				t.Errorf("cut off: %v", got)
			}
			if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Drop {
				t.Errorf("the rest of the list is lost: %v", got)
			}
		})
	}
}

// Where an entry expires that allowed what a list would cut off, that is left out in the same
// turn, not only when it is time to look again.
func TestGuardAfterExpiry(t *testing.T) {
	t.Run("", func(t *testing.T) { testGuardAfterExpiry(t, 0) })
	t.Run("with a TTL", func(t *testing.T) { testGuardAfterExpiry(t, 2*time.Hour) })
}

func testGuardAfterExpiry(t *testing.T, ttl time.Duration) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	neighbour := l.A.IPv4.String()
	r := configure(t, l.B)
	r.lists(t, feedFile(t, "feed.txt", local+"\n"+firstSource+"\n"))
	r.c.Lists[0].TTL = quantity.Duration(ttl)
	d := begin(t, r)
	lookAgain(t, d)
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Allow, Entries: []string{local}, TTL: 3600}); err != nil {
		t.Fatal(err)
	}
	leftOut := func() int { return d.active.prepared.List("feed").Left.Entries() }
	over := time.Now().Add(time.Hour + time.Minute)
	err := d.loop.doAlone(t.Context(), func() error {
		d.followPeers(time.Now()) // since an entry has changed
		if n := leftOut(); n != 0 {
			return fmt.Errorf("%d entries are left out that are allowed", n)
		}
		d.loop.stage = building
		err := d.expire(over)
		if d.loop.stage = idle; err != nil || d.active.prepared.Contents(d.active.prepared.List(config.DefaultAllow).ManualNumber).Len() != 1 {
			return fmt.Errorf("beside the work on another engine, what allowed it has ended: %w", err)
		}
		if err := d.expire(over); err != nil {
			return err
		}
		if n := leftOut(); n != 1 {
			return fmt.Errorf("%d entries are left out, want that of the connected network", n)
		}
		d.antiLockout.lookAgain = over.Add(lockoutInterval)
		d.tend(over)
		if n := leftOut(); n != 1 {
			return fmt.Errorf("later, %d entries are left out", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := verdictOf(t, d.Daemon, neighbour); got != verdict.Pass {
		t.Errorf("cut off from %s: %v", neighbour, got)
	}
}

// Where an entry leaves the source of an allow list that allowed what another list would cut off, that
// is left out with the same change, and what has left that one's source stays no longer.
func TestGuardAfterAllowed(t *testing.T) {
	l := lab.New(t)
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	neighbour := l.A.IPv4.String()
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	allowed, left := feedFile(t, "allowed.txt", local+"\n192.0.2.1\n"), feedFile(t, "left.txt", local+"\n"+secondSource+"\n")
	r.lists(t, feedFile(t, "feed.txt", local+"\n"+firstSource+"\n"), left)
	r.change(func(c *config.Config) {
		if _, err := c.AddFile(allowed, config.Allow); err != nil {
			t.Fatal(err)
		}
		c.Lists[1].TTL = quantity.Duration(2 * time.Hour)
	})
	d := begin(t, r)
	read := func(name, file, text string) {
		t.Helper()
		write(t, file, text)
		if all, err := d.api.Refresh(t.Context(), name, false); err != nil || len(all) != 1 || all[0].Error != "" {
			t.Fatalf("%s: %+v, %v", name, all, err)
		}
	}
	read("left", left, secondSource+"\n")
	k := key.Source(netip.MustParsePrefix(local))
	if _, ok := d.journal.Get("left", k); !ok {
		t.Fatal("what has left the source does not stay")
	}
	if err := d.loop.Do(t.Context(), func() error {
		if n := d.active.prepared.List("feed").Left.Entries(); n != 0 {
			return fmt.Errorf("%d entries are left out that are allowed", n)
		}
		d.antiLockout.lookAgain = time.Now().Add(time.Hour)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	read("allowed", allowed, "192.0.2.1\n")
	if got := verdictOf(t, d.Daemon, neighbour); got != verdict.Pass {
		t.Errorf("cut off from %s: %v", neighbour, got)
	}
	if _, ok := d.journal.Get("left", k); ok {
		t.Error("what has left the source stays")
	}
	for _, l := range d.readings.Lists().Lists {
		if l.Name == "feed" && len(l.LeftOut) != 1 {
			t.Errorf("left out: %+v", l.LeftOut)
		}
	}
	for _, source := range []string{firstSource, secondSource} {
		if got := verdictOf(t, d.Daemon, source); got != verdict.Drop {
			t.Errorf("the rest of a list is lost: %s: %v", source, got)
		}
	}
	read("allowed", allowed, local+"\n192.0.2.1\n")
	look := func() error {
		d.antiLockout.lookAgain = time.Time{}
		d.followPeers(time.Now())
		if n := d.active.prepared.List("feed").Left.Entries(); n != 0 {
			return fmt.Errorf("%d entries are left out that are allowed again", n)
		}
		return nil
	}
	if err := d.loop.doAlone(t.Context(), look); err != nil {
		t.Error(err)
	}
}

// A command does not cut off the host, or its caller, unless it insists.
func TestCommandsAreGuarded(t *testing.T) {
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	local := netip.PrefixFrom(l.B.IPv4, 24).Masked().String()
	ssh := fmt.Sprintf("203.0.113.9 50000 %v 22", l.B.IPv4)
	block := func(force bool, entries ...string) error {
		_, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: entries, Force: force, SSH: ssh})
		return err
	}
	for _, c := range []struct{ entry, what string }{
		{local, "the connected network " + local},
		{l.B.IPv4.String(), "this host's address " + l.B.IPv4.String()},
		{"any *:* > " + l.B.IPv4.String() + ":*", "this host's address"},
		{"203.0.113.0/24", "your SSH session from 203.0.113.9"},
		{"tcp *:* > *:22", "your SSH session"},
	} {
		err := block(false, "192.0.2.1", c.entry)
		var bad *api.BadRequest
		if !errors.As(err, &bad) || bad.Entry == nil || *bad.Entry != 1 || bad.Text != c.entry || !strings.Contains(err.Error(), "would cut off "+c.what) {
			t.Errorf("%s: %v", c.entry, err)
		}
		if got := verdictOf(t, d.Daemon, "192.0.2.1"); got != verdict.Pass {
			t.Fatalf("%s: half of the change was made", c.entry)
		}
	}
	// A range of several prefixes comes first, and a lower address after it.
	if err := block(true, "198.51.100.1-198.51.100.14", "192.0.2.7", "0.0.0.0/1"); err == nil || !strings.Contains(err.Error(), "covers") && !strings.Contains(err.Error(), "max_coverage") {
		t.Errorf("a half of IPv4: %v", err)
	}
	if err := block(true, "198.51.100.1-198.51.100.14", "192.0.2.7"); err != nil {
		t.Error(err)
	}
	for _, of := range []string{"198.51.100.1", "198.51.100.14", "192.0.2.7"} {
		if got := verdictOf(t, d.Daemon, of); got != verdict.Drop {
			t.Errorf("%s passes", of)
		}
	}
	if got := verdictOf(t, d.Daemon, "198.51.100.15"); got != verdict.Pass {
		t.Error("what is behind a range is dropped")
	}
	if err := block(false, l.A.IPv4.String(), "203.0.113.8"); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
	if err := block(true, "203.0.113.9"); err != nil {
		t.Error(err)
	}
	if err := block(false, "203.0.113.0/24"); err == nil {
		t.Error("what else covers a session that is blocked already")
	}
}

// A flush of entries that protect its caller is refused, unless the caller insists.
func TestFlushIsGuarded(t *testing.T) {
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	ssh := fmt.Sprintf("203.0.113.9 50000 %v 22", l.B.IPv4)
	for _, c := range []api.Change{
		{Action: api.Allow, Entries: []string{"203.0.113.9", "203.0.113.77"}},
		{Action: api.Block, Entries: []string{"203.0.113.0/24"}, SSH: ssh},
	} {
		if _, err := d.changes.Change(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []api.FlushChange{{SSH: ssh}, {Connection: ssh}} {
		_, err := d.changes.Flush(t.Context(), config.DefaultAllow, c)
		var bad *api.BadRequest
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), "203.0.113.9") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%+v: %v", c, err)
		}
		if got := verdictOf(t, d.Daemon, "203.0.113.77"); got != verdict.Pass {
			t.Fatalf("%+v: half of the change was made", c)
		}
	}
	if done, err := d.changes.Flush(t.Context(), config.DefaultAllow, api.FlushChange{Force: true, SSH: ssh}); err != nil || done.Removed != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if got := verdictOf(t, d.Daemon, "203.0.113.9"); got != verdict.Drop {
		t.Errorf("what is allowed no more: %v", got)
	}
}

// exclude_private leaves out exactly the entries that lie in private networks. They are named,
// left out or blocked.
func TestExcludePrivate(t *testing.T) {
	for _, excluded := range []bool{true, false} {
		entries, done := 8, "blocked: 6, 0.0.0.0, "
		if excluded {
			entries, done = 2, "left out: 6, 0.0.0.0, "
		}
		r := configure(t, lab.New(t).B)
		r.lists(t, feedFile(t, "feed.txt", "10.1.0.0/16\n192.168.1.1\n0.0.0.0\n127.0.0.1\nfc00::/8\nfe80::1\n192.0.2.1\n192.0.0.0/9\n"))
		r.change(func(c *config.Config) { c.Lists[0].ExcludePrivate = excluded })
		d := begin(t, r)
		l := d.readings.Lists().Lists[slices.IndexFunc(d.readings.Lists().Lists, func(l api.List) bool { return l.Name == "feed" })]
		if l.Private != 6 || l.Entries != entries || l.PrivateBlocked == excluded || len(l.FirstPrivate) == 0 || l.FirstPrivate[0] != "0.0.0.0" {
			t.Errorf("%+v", l)
		}
		if got := strings.Join(d.active.prepared.Warnings(), "\n"); !strings.Contains(got, "list feed: private, loopback or similar networks are "+done) {
			t.Error(got)
		}
	}
}

// The protection against lock-out sees what entries match: flows as well, the IPv6 space that is in use,
// and everything together.
func TestTooWide(t *testing.T) {
	c := config.Default()
	for text, wide := range map[string]bool{
		"any *:* > 0.0.0.0/0:*":       true,
		"tcp *:* > *:*":               true,
		"udp *:* > *:*":               true,
		"udp 0.0.0.0/1:* > *:*":       true,
		"> 0.0.0.0/1":                 true,
		"any *:* > 0.0.0.0/1:*":       true,
		"2000::/3":                    true,
		"2000::/4":                    true,
		"::/1":                        true,
		"any [2000::/4]:* > [::/0]:*": true,
		"tcp *:* > *:23":              false,
		"47 *:* > *:*":                false,
		"10.0.0.0/8":                  false,
		"8000::/1":                    false, // not allocated
		"2400::/12":                   false,
		"tcp 10.0.0.0/8:* > *:*":      false,
	} {
		e, err := listfile.ParseEntry(text)
		if err != nil {
			t.Fatal(text, err)
		}
		if err := ruleset.RefuseRead(c, config.List{Name: "x"}, e.Set(), false); (err != nil) != wide {
			t.Errorf("%s: %v", text, err)
		}
	}

	d := begin(t, configure(t, lab.New(t).B))
	var taken []string
	for _, text := range []string{"64.0.0.0/3", "96.0.0.0/3", "128.0.0.0/3"} {
		if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{text}, Force: true}); err == nil {
			taken = append(taken, text)
		}
	}
	if len(taken) != 2 {
		t.Errorf("one after another: %v were taken", taken)
	}
	// What is there already does not count twice.
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: taken}); err != nil {
		t.Error(err)
	}
}

// An entry that would cut off what has become a peer is left out, and does not stay for the list's
// TTL: its source still has it.
func TestLeftOutDoesNotLinger(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].TTL = quantity.Duration(2 * time.Hour)
	const network, neighbour = "198.18.77.0/24", "198.18.77.2"
	write(t, string(r.c.Lists[0].Sources[0].File), network+"\n"+firstSource+"\n")
	d := begin(t, r)
	if got := verdictOf(t, d.Daemon, neighbour); got != verdict.Drop {
		t.Fatalf("%v, want it dropped while it is no peer", got)
	}
	l.B.In(t, func() {
		link, err := netlink.LinkByName(l.B.Iface)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 18, 77, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
			t.Fatal(err)
		}
	})
	lookAgain(t, d)
	if _, ok := d.journal.Get("feed", key.Source(netip.MustParsePrefix(network))); ok {
		t.Error("it stays")
	}
	if got := verdictOf(t, d.Daemon, neighbour); got != verdict.Pass {
		t.Errorf("cut off: %v", got)
	}
}

// twoSources sets two sources of the list, the first of which has a network, and returns the file of the other.
func twoSources(t *testing.T, r *configured, network string) (other string) {
	t.Helper()
	other = feedFile(t, "other.txt", firstSource+"\n")
	r.lists(t, feedFile(t, "feed.txt", network+"\n"+firstSource+"\n11.0.0.0/9\n"))
	r.c.Lists[0].Sources = append(r.c.Lists[0].Sources, feed.DefaultSpec(feed.Source{File: feed.Path(other)}).Sources...)
	r.c.Lists[0].Required = false
	r.c.MaxCoverage = 0.005
	return other
}

// refuseTogether has the other one of two sources have what max_coverage allows of each of them, not of both.
func refuseTogether(t *testing.T, d *running, other string) {
	t.Helper()
	write(t, other, firstSource+"\n12.0.0.0/9\n13.0.0.0/9\n")
	if all, err := d.api.Refresh(t.Context(), "feed", false); err != nil || len(all) != 2 || all[1].Error == "" {
		t.Fatalf("%+v, %v", all, err)
	}
}

// unscheduled ends the reading of feeds at their intervals and at each change of a file, and returns them.
func unscheduled(t *testing.T, d *Daemon) (all []*feed.Feed) {
	t.Helper()
	if err := d.loop.Do(t.Context(), func() error {
		for one, end := range d.feeds.Running {
			end()
			all = append(all, one)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d.feeds.Wait()
	return all
}

// lookAgain has the protection against lock-out look now whom the lists would cut off.
func lookAgain(t *testing.T, d *running) {
	t.Helper()
	if err := d.loop.doAlone(t.Context(), func() error {
		d.antiLockout.lookAgain = time.Time{}
		d.followPeers(time.Now())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

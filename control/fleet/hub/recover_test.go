package hub

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/enrollment"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/wait"
)

// savingNodes returns nodes that save what they have.
func (f *fleet) savingNodes(count int) (all []*fleetnode.Node) {
	f.t.Helper()
	for i := range count {
		n, err := f.authority.Enroll(fmt.Sprintf("edge-%d", i), nil, []string{"tls://" + f.listen})
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, follow(f.t, fleetnode.Config{Enrollment: n, Directory: f.t.TempDir()}))
	}
	return all
}

// A hub that goes on from an older copy takes the changes since then back from what its nodes have saved, as it had
// signed them: entries that were added, with the time when they expire, and those that were removed.
func TestTakeBack(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	f.start("")
	all := f.savingNodes(3)
	change := func(remove bool, ttl float64, entries ...string) {
		t.Helper()
		c := block(entries...)
		c.Remove, c.TTL = remove, ttl
		if got, err := f.hub.Change(t.Context(), c); err != nil || !got.Published {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	change(false, 0, "192.0.2.1", "192.0.2.2")
	f.stop()
	for _, dir := range []string{"hub", "broker"} {
		f.copyOf(dir, "copy-of-"+dir)
	}
	f.start("")
	var since []string
	for i := range 40 {
		since = append(since, fmt.Sprintf("10.0.0.%d", i))
		change(false, 0, since[i])
	}
	change(false, 3600, "10.1.0.0/24")
	change(true, 0, "192.0.2.1")
	want := f.truth()[config.FleetBlock]
	for _, n := range all {
		wait.Until(t, func() error { return hasAll(listOf(n, config.FleetBlock), append(since, "10.1.0.0/24")) })
	}
	f.stop()
	for _, dir := range []string{"hub", "broker"} {
		if err := os.RemoveAll(filepath.Join(f.dir, dir)); err != nil {
			t.Fatal(err)
		}
		f.copyOf("copy-of-"+dir, dir)
	}
	f.start("")
	same := func() error {
		if d := want.Diff(f.truth()[config.FleetBlock]); d.Len() > 0 {
			return fmt.Errorf("%d entries of the hub are missing, %d too many", d.Add.Len(), d.Remove.Len())
		}
		return nil
	}
	wait.Until(t, same)
	change(false, 0, "10.2.0.1")
	for _, n := range all {
		wait.Until(t, func() error {
			if listOf(n, config.FleetBlock).Len() != want.Len()+1 {
				return fmt.Errorf("%s has %d entries", n.Name(), listOf(n, config.FleetBlock).Len())
			}
			return hasAll(listOf(n, config.FleetBlock), append(since, "10.1.0.0/24", "192.0.2.2", "10.2.0.1"))
		})
	}
	timed := 0
	for e := range f.hub.journal.Entries() {
		if !e.Expires.IsZero() {
			timed++
		}
	}
	if timed != 1 {
		t.Errorf("%d entries expire, want the one with a time", timed)
	}
	found := false
	for _, r := range f.hub.Audit(100) {
		found = found || r.Change == audit.TakeBack && r.Changed == 42 && strings.HasPrefix(r.Reason, "from node edge-")
	}
	if !found {
		t.Errorf("the audit does not say what was taken back: %+v", f.hub.Audit(100))
	}
}

// While a hub waits for a node that does not come, before it publishes, the others stay connected, also where they know
// servers that do not answer: they have what it takes back.
func TestTakeBackStays(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	gone := []string{lab.FreeAddress(t), lab.FreeAddress(t)}
	servers := []string{"tls://" + f.listen, "tls://" + gone[0], "tls://" + gone[1]}
	f.start("", servers...)
	var log record
	n := follow(t, fleetnode.Config{Enrollment: must.Have(f.authority.Enroll("edge-1", nil, servers)), Directory: t.TempDir(), Log: log.log()})
	other := f.host("edge-2")
	f.change(block("192.0.2.1"))
	f.stop()
	f.copyOf("hub", "older")
	f.start("", servers...)
	f.change(block("192.0.2.2"))
	want := f.truth()[config.FleetBlock]
	wait.Until(t, func() error { return hasAll(listOf(n, config.FleetBlock), []string{"192.0.2.2"}) })
	f.stop()
	other.stop()
	if err := os.RemoveAll(filepath.Join(f.dir, "broker")); err != nil {
		t.Fatal(err)
	}
	f.copyOf("older", "hub")
	f.start("", servers...)
	<-f.hub.publisher.contest.looked // the hub visits these addresses before it does anything else
	for _, address := range gone {
		lab.Hole(t, address)
	}
	wait.Until(t, func() error {
		if got := f.truth()[config.FleetBlock]; got.Diff(want).Len() > 0 {
			return fmt.Errorf("the hub has %d entries, want %d", got.Len(), want.Len())
		}
		return nil
	})
	if log.has("connecting anew") == nil {
		t.Error("the node has left the hub")
	}
}

// Whenever a hub goes on from an older copy, any one of several, again and again, with the broker's stream of then, of now
// or without one, all changes by commands since the copy come back from its nodes, also where others are made at once.
func TestTakeBackAtRandom(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	r := seed.New(t)
	f := newFleet(t)
	f.reserve()
	f.start("")
	all := f.savingNodes(3)
	want := make(map[string]bool)
	change := func() {
		t.Helper()
		entry := fmt.Sprintf("10.%d.%d.0/24", r.IntN(4), r.IntN(50))
		c := block(entry)
		if c.Remove = r.IntN(3) == 0; !c.Remove && r.IntN(4) == 0 {
			c.TTL = 86400
		}
		if got, err := f.hub.Change(t.Context(), c); err != nil || !got.Published {
			t.Fatalf("%+v, %v", got, err)
		}
		if delete(want, entry); !c.Remove {
			want[entry] = true
		}
	}
	has := func(who string, set *list.Set) error {
		var lacks []string
		for entry := range want {
			if hasAll(set, []string{entry}) != nil {
				lacks = append(lacks, entry)
			}
		}
		if len(lacks) > 0 || set.Len() != len(want) {
			return fmt.Errorf("%s has %d entries, want %d, and lacks %v", who, set.Len(), len(want), lacks)
		}
		return nil
	}
	var copies []int // their number of rounds
	for round := range long.Rounds(1, 4, 60) {
		for range r.IntN(10) {
			change()
		}
		f.stop()
		if len(copies) == 0 || r.IntN(3) == 0 { // else an old one is restored once more
			for _, dir := range []string{"hub", "broker"} {
				f.copyOf(dir, fmt.Sprintf("copy-%d/%s", round, dir))
			}
			copies = append(copies, round)
		}
		f.start("")
		since := r.IntN(41)
		for range since {
			change()
		}
		first := all[r.IntN(len(all))] // the others may be behind
		wait.Until(t, func() error { return has(first.Name(), listOf(first, config.FleetBlock)) })
		f.stop()
		of := copies[r.IntN(len(copies))]
		from := fmt.Sprintf("copy-%d/", of)
		f.copyOf(from+"hub", "hub")
		stream := []string{"of now", "of then", "none"}[r.IntN(3)]
		switch stream {
		case "of then":
			f.copyOf(from+"broker", "broker")
		case "none":
			if err := os.RemoveAll(filepath.Join(f.dir, "broker")); err != nil {
				t.Fatal(err)
			}
		}
		f.start("")
		atOnce := r.IntN(3)
		for range atOnce {
			change()
		}
		what := fmt.Sprintf("round %d, %d changes, copy %d, stream %s, %d at once: the hub", round, since, of, stream, atOnce)
		wait.Until(t, func() error {
			err := has(what, f.truth()[config.FleetBlock])
			if err == nil {
				return nil
			}
			lost, _ := f.hub.Lost(t.Context())
			return fmt.Errorf("%w\nlisted as lost: %+v\nproblems: %q", err, lost, f.problems())
		})
		change()
		for _, n := range all {
			wait.Until(t, func() error { return has(n.Name(), listOf(n, config.FleetBlock)) })
		}
		if lost, err := f.hub.Lost(t.Context()); err != nil || len(lost.Lost) > 0 {
			t.Fatalf("%s: listed as lost: %+v, %v", what, lost, err)
		}
	}
}

// A hub that begins with an empty state has its manual lists back from its nodes.
func TestTakeBackEmpty(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	f.start("")
	all := f.savingNodes(2)
	f.change(block("192.0.2.1", "192.0.2.2"))
	want := f.truth()[config.FleetBlock]
	for _, n := range all {
		wait.Until(t, func() error { return hasAll(listOf(n, config.FleetBlock), []string{"192.0.2.1", "192.0.2.2"}) })
	}
	f.stop()
	for _, dir := range []string{"hub", "broker"} {
		if err := os.RemoveAll(filepath.Join(f.dir, dir)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(1100 * time.Millisecond) // epochs begin with the second
	f.start("")
	f.change(block("192.0.2.3"))
	wait.Until(t, func() error {
		if d := f.truth()[config.FleetBlock].Diff(want); d.Add.Len() != 1 || d.Remove.Len() != 0 {
			return fmt.Errorf("%d entries are new, and %d missing", d.Add.Len(), d.Remove.Len())
		}
		return nil
	})
	for _, n := range all {
		wait.Until(t, func() error { return hasAll(listOf(n, config.FleetBlock), []string{"192.0.2.1", "192.0.2.3"}) })
	}
}

// A hub takes changes back also where the only node that has them, whose connection outlasts the hub, as with a cluster,
// reports later than most, and where its first answer is lost, before it publishes anything.
func TestTakeBackLate(t *testing.T) {
	t.Parallel() // it waits a lot
	for _, state := range []string{"older", "empty"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.reserve()
			f.start("")
			n, _ := f.enroll("edge-1")
			f.change(block("192.0.2.1"))
			sealed := func() (has wire.ListStatus, saved []byte) {
				has, saved = f.has(config.FleetBlock), f.saved(config.FleetBlock)
				has.Seal = wire.Version{Place: has.Active, ID: has.ID, Sum: has.Sum}.Sealed(f.authority.Key(), has.Name)
				return has, saved
			}
			had, savedThen := sealed()
			var behind []enrollment.Node
			for i := range 2 {
				n, _ := f.enroll(fmt.Sprintf("behind-%d", i))
				behind = append(behind, n)
			}
			f.stop()
			f.copyOf("hub", "older")
			if err := os.Mkdir(filepath.Join(f.dir, "empty"), 0o700); err != nil {
				t.Fatal(err)
			}
			f.start("")
			f.change(block("192.0.2.2"))
			f.change(block("192.0.2.3"))
			want := f.truth()[config.FleetBlock]
			has, saved := sealed()
			f.stop()
			f.copyOf(state, "hub") // the stream is as it is now
			wait.For(t, "another epoch", func() bool { return time.Now().Unix() > int64(has.Active.Epoch) })
			f.start("")
			var reports []func()
			for _, n := range behind {
				c, err := f.connect(n)
				if err == nil {
					_, err = c.Subscribe(wire.AskSubject(n.Name, wire.AskSaved), func(m *nats.Msg) {
						_ = m.Respond(wire.MarshalAnswer(wire.SavedPart{Part: savedThen, Size: int64(len(savedThen))}, nil))
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				text := status(t, wire.Status{Lists: []wire.ListStatus{had}})
				reports = append(reports, func() { _ = c.Publish(wire.StatusSubject(n.Name), text) })
			}
			wait.For(t, "most nodes are heard", func() bool {
				for _, report := range reports {
					report()
				}
				return f.hub.nodes.mostHeard()
			})
			c, err := f.connect(n)
			if err != nil {
				t.Fatal(err)
			}
			lost := false
			if _, err := c.Subscribe(wire.AskSubject(n.Name, wire.AskSaved), func(m *nats.Msg) {
				if made := f.hub.Metrics().Published.Catalogs; made > 0 {
					t.Errorf("nodes have had %d catalogs, and nothing of before any more", made)
				}
				if lost {
					_ = m.Respond(wire.MarshalAnswer(wire.SavedPart{Part: saved, Size: int64(len(saved))}, nil))
				}
				lost = true
			}); err != nil {
				t.Fatal(err)
			}
			report := status(t, wire.Status{Lists: []wire.ListStatus{has}})
			time.AfterFunc(wire.StatusInterval/2, func() { _ = c.Publish(wire.StatusSubject(n.Name), report) })
			wait.Until(t, func() error {
				if got := f.truth()[config.FleetBlock]; got.Diff(want).Len() > 0 {
					all, err := f.hub.Lost(t.Context())
					return errors.Join(fmt.Errorf("the hub has %d entries, want %d, and lists as lost: %+v", got.Len(), want.Len(), all), err)
				}
				return nil
			})
		})
	}
}

// A hub takes changes back also from a node that finds versions of its own numbers in the stream, since commands came first.
func TestTakeBackOvertaken(t *testing.T) {
	t.Parallel() // it waits a lot
	for commands := 1; commands <= 2; commands++ {
		t.Run(fmt.Sprint(commands), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.reserve()
			f.start("")
			h := f.host("edge-1")
			for i := range 2 { // which the hub waits for
				if _, err := f.authority.Enroll(fmt.Sprintf("silent-%d", i), nil, []string{"tls://" + f.listen}); err != nil {
					t.Fatal(err)
				}
			}
			f.change(block("192.0.2.1"))
			f.stop()
			for _, dir := range []string{"hub", "broker"} {
				f.copyOf(dir, "copy-of-"+dir)
			}
			f.start("")
			f.change(block("192.0.2.2"))
			wait.Until(t, func() error { return hasSaved(f.authority.Key(), h.dir, config.FleetBlock, "192.0.2.2") })
			had := f.hub.Metrics().Published.Catalogs
			f.stop()
			h.stop()
			for _, dir := range []string{"hub", "broker"} {
				f.copyOf("copy-of-"+dir, dir)
			}
			f.start("")
			all := []string{"192.0.2.1", "192.0.2.2"}
			for i := range commands {
				entry := fmt.Sprintf("198.51.100.%d", i)
				all = append(all, entry)
				if got := f.change(block(entry)); !got.Published {
					t.Fatalf("%+v", got)
				}
			}
			wait.For(t, "catalogs later than the node's", func() bool { return f.hub.Metrics().Published.Catalogs > had+2 })
			h = f.again(h)
			wait.Until(t, func() error { return hasAll(f.truth()[config.FleetBlock], all) })
			wait.Until(t, func() error { return hasAll(listOf(h.Node, config.FleetBlock), all) })
		})
	}
}

// saved returns the file in which a node would have saved a list of the hub.
func (f *fleet) saved(name string) (file []byte) {
	f.t.Helper()
	if err := f.hub.Do(f.t.Context(), func() error {
		l := f.hub.lists.get(name).history
		chunks, _, err := l.Snapshot()
		if err != nil {
			return err
		}
		if file, err = wire.AppendSavedHead(nil, l.Base()); err != nil {
			return err
		}
		file = append(file, bytes.Join(chunks, nil)...)
		return l.Deltas(l.Base().Version, func(_ uint64, message []byte) error {
			file = wire.AppendSavedDelta(file, message)
			return nil
		})
	}); err != nil {
		f.t.Fatal(err)
	}
	return file
}

// What a node reports when the next epoch has begun is listed, once: with its entries, unless the node has them no more.
func TestLateIsListed(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	f.start("")
	n, _ := f.enroll("edge-1")
	type version struct {
		wire.ListStatus
		saved []byte
	}
	had := func(entry string) (v version) {
		f.change(block(entry))
		v.ListStatus, v.saved = f.has(config.FleetBlock), f.saved(config.FleetBlock)
		v.Seal = wire.Version{Place: v.Active, ID: v.ID, Sum: v.Sum}.Sealed(f.authority.Key(), v.Name)
		return v
	}
	first := had("192.0.2.1")
	f.stop()
	f.copyOf("hub", "older")
	f.start("")
	var later []version
	for i := range 4 {
		later = append(later, had(fmt.Sprintf("192.0.2.%d", 2+i)))
	}
	f.stop()
	f.copyOf("older", "hub") // the stream is as it is now
	f.start("")
	c, err := f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	saved := make(chan []byte, 1)
	saved <- first.saved
	if _, err := c.Subscribe(wire.AskSubject(n.Name, wire.AskSaved), func(m *nats.Msg) {
		file := <-saved
		saved <- file
		_ = m.Respond(wire.MarshalAnswer(wire.SavedPart{Part: file, Size: int64(len(file))}, nil))
	}); err != nil {
		t.Fatal(err)
	}
	reports := func(v version, file []byte) {
		t.Helper()
		<-saved
		saved <- file
		if err := c.Publish(wire.StatusSubject(n.Name), status(t, wire.Status{Lists: []wire.ListStatus{v.ListStatus}})); err != nil {
			t.Fatal(err)
		}
	}
	epoch := func() uint64 { return f.hub.store.Used().Epoch }
	wait.For(t, "the next epoch", func() bool { reports(first, first.saved); return epoch() > first.Active.Epoch })
	listed := func(want ...string) error {
		lost, err := f.hub.Lost(t.Context())
		var got []string
		for _, l := range lost.Lost {
			got = append(got, fmt.Sprint(l.Version.Version-first.Active.Version, " ", l.Added, l.Removed))
		}
		if !slices.Equal(got, want) {
			return errors.Join(fmt.Errorf("%q are listed, want %q: %+v", got, want, lost), err)
		}
		return nil
	}
	lists := func(want ...string) {
		t.Helper()
		wait.Until(t, func() error { return listed(want...) })
	}
	lists()
	both := "2 [192.0.2.2 192.0.2.3] []"
	wait.Until(t, func() error { // as nodes do, it reports again: a question to it may come to nothing beside other work
		reports(later[1], later[1].saved)
		return listed(both)
	})
	wait.For(t, "the problem names the command", func() bool { return strings.Contains(strings.Join(f.problems(), "\n"), "weir fleet lost") })
	// The first two say nothing new.
	now := f.saved(config.FleetBlock)
	for _, v := range []version{later[0], later[1], later[3]} {
		wait.For(t, "the report is heard", func() bool {
			reports(v, now)
			return len(f.hub.nodes.having(v.Name, func(is wire.Version, _ string) bool { return is.ID == v.ID })) > 0
		})
	}
	lists(both, "4 [] []")
	f.change(block("192.0.2.2", "192.0.2.3"))
	lists("4 [] []")
}

// What nodes had and the hub cannot take back is listed until it was made again, also after a restart: of a list with a
// feed, and what the hub has not signed.
func TestLostIsListed(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 1s}}", f.feed("203.0.113.1"))
	f.start(lists)
	n, err := f.authority.Enroll("edge-0", nil, []string{"tls://" + f.listen})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	follow(t, fleetnode.Config{Enrollment: n, Directory: dir})
	f.change(block("192.0.2.1", "192.0.2.2"))
	f.stop()
	for _, dir := range []string{"hub", "broker"} {
		f.copyOf(dir, "copy-of-"+dir)
	}
	f.start(lists)
	f.change(block("192.0.2.3"))
	remove := block("192.0.2.2")
	remove.Remove = true
	f.change(remove)
	toDrop := block("198.51.100.1")
	toDrop.List = "drop"
	f.change(toDrop)
	for name, entry := range map[string]string{config.FleetBlock: "192.0.2.3", "drop": "198.51.100.1"} {
		wait.Until(t, func() error { return hasSaved(f.authority.Key(), dir, name, entry) }) // later than it is active
	}
	f.stop()
	unsign(t, dir, config.FleetBlock)
	for _, dir := range []string{"hub", "broker"} {
		f.copyOf("copy-of-"+dir, dir)
	}
	f.start(lists)
	listed := func() (all []string) {
		t.Helper()
		lost, err := f.hub.Lost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lost.Lost {
			all = append(all, fmt.Sprint(l.List, " ", l.Node, " ", l.Added, l.Removed))
		}
		slices.Sort(all)
		return all
	}
	both := []string{"block edge-0 [192.0.2.3] [192.0.2.2]", "drop edge-0 [198.51.100.1] []"}
	wait.Until(t, func() error {
		if got := listed(); !slices.Equal(got, both) {
			return fmt.Errorf("%q are listed, want %q", got, both)
		}
		return nil
	})
	wait.For(t, "the problem names the command", func() bool { return strings.Contains(strings.Join(f.problems(), "\n"), "weir fleet lost") })
	f.stop()
	f.start(lists)
	if got := listed(); !slices.Equal(got, both) {
		t.Errorf("after a restart: %q", got)
	}
	f.change(toDrop)
	f.change(block("192.0.2.3"))
	wait.For(t, "one is listed", func() bool { return slices.Equal(listed(), []string{"block edge-0 [] [192.0.2.2]"}) })
	f.change(remove)
	wait.For(t, "none is listed", func() bool { return len(listed()) == 0 })
}

// hasSaved returns why a node has not saved an entry of a list below a directory.
func hasSaved(key ed25519.PrivateKey, dir, name, entry string) error {
	found := errors.New("no file")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != hex.EncodeToString([]byte(name)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		l, _, err := store.Saved(key, name, bytes.NewReader(text))
		if found = err; err == nil {
			found = hasAll(l.Contents(), []string{entry})
		}
		return nil
	})
	return errors.Join(err, found)
}

// unsign has the files of a list below a directory as nodes write them that have made a snapshot themselves.
func unsign(t *testing.T, dir, name string) {
	t.Helper()
	done := 0
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != hex.EncodeToString([]byte(name)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r := bytes.NewReader(text)
		h, err := wire.ReadSavedHead(r)
		if err != nil {
			return err
		}
		h.Signed = nil
		begin, err := wire.AppendSavedHead(nil, h)
		if err != nil {
			return err
		}
		done++
		return os.WriteFile(path, append(begin, text[len(text)-r.Len():]...), 0o600)
	}); err != nil || done != 1 {
		t.Fatalf("%d files, %v", done, err)
	}
}

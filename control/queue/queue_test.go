package queue

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/tests/must"
)

func block(entries ...string) Command {
	return Command{Time: time.Now(), By: api.Caller{UID: 7}, Change: api.Change{Action: api.Block, Entries: entries, TTL: 60, Reason: "x", SSH: "192.0.2.1 1 192.0.2.2 22"}}
}

// entries returns the first entries of the changes that wait, in their order.
func entries(t *testing.T, q Queue) (all []string) {
	t.Helper()
	names, err := q.Waiting()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c, err := q.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c.Change.Entries[0])
	}
	return all
}

// The queue returns the files that were added, and each is gone once it is done.
func TestRoundTrip(t *testing.T) {
	q := In(t.TempDir())
	if names, err := q.Waiting(); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
	want := block("192.0.2.1", "tcp *:* > 198.51.100.7:443")
	want.Change.Remove, want.Change.TTL, want.Change.Reason, want.Change.Force = true, 0, "", true
	if err := q.Add(want); err != nil {
		t.Fatal(err)
	}
	names, err := q.Waiting()
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	got, err := q.Read(names[0])
	if err != nil {
		t.Fatal(err)
	}
	want.Time = want.Time.UTC().Round(0)
	want.Change.UID, want.Change.Given = 7, want.Time
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := q.Done(names[0]); err != nil {
		t.Fatal(err)
	}
	if names, err := q.Waiting(); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

// The order is that in which changes were added, also when the clock is set back.
func TestOrder(t *testing.T) {
	q := In(t.TempDir())
	var want []string
	for i, at := range []time.Duration{0, time.Hour, -time.Hour, -time.Hour, 0} {
		c := block(fmt.Sprintf("192.0.2.%d", i))
		c.Time = c.Time.Add(at)
		if err := q.Add(c); err != nil {
			t.Fatal(err)
		}
		want = append(want, c.Change.Entries[0])
	}
	if got := entries(t, q); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Processes may add at the same time.
func TestConcurrentAdds(t *testing.T) {
	q := In(t.TempDir())
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := q.Add(block(fmt.Sprintf("192.0.2.%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got := entries(t, q)
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != 20 {
		t.Errorf("%d changes wait, want 20", len(got))
	}
}

// Changes that the API would refuse do not wait, and there is a limit to their number.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	q := In(dir)
	if err := q.Add(block()); err == nil {
		t.Error("a change without entries waits")
	}
	if err := (Queue{}).Add(block("192.0.2.1")); err == nil {
		t.Error("a change waits nowhere")
	}
	if err := q.Add(block("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	must.Write(t, file, "")
	for i := range MaxChanges - 1 { // names of one file, which are made sooner than files
		if err := os.Link(file, filepath.Join(dir, "queue", fmt.Sprintf("%019d-x.json", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Add(block("192.0.2.1")); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}

// The bytes of changes are limited. What is left over of others does not count, and is removed where it was being
// written long ago.
func TestLeftOver(t *testing.T) {
	dir := t.TempDir()
	q := In(dir)
	if err := q.Add(block("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	put := func(name string, age time.Duration, size int64) string {
		t.Helper()
		path, at := filepath.Join(dir, "queue", name), time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := put(fmt.Sprintf("%019d-x.json.new", 1), 2*time.Hour, MaxBytes)
	young := put(fmt.Sprintf("%019d-y.json.new", 2), time.Minute, MaxBytes)
	bad := put(fmt.Sprintf("%019d-z.json.bad", 3), 24*time.Hour, MaxBytes)
	if err := q.Add(block("192.0.2.2")); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]bool{old: false, young: true, bad: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	put(fmt.Sprintf("%019d-large.json", 4), 0, 2*MaxBytes) // it is set aside
	if err := q.Add(block("192.0.2.3")); err != nil {
		t.Error(err)
	}
	for n := range 4 {
		put(fmt.Sprintf("%019d-a.json", 5+n), 0, MaxBytes/4)
	}
	if err := q.Add(block("192.0.2.4")); !errors.Is(err, ErrFull) {
		t.Errorf("more bytes than the limit: %v", err)
	}
}

// Root's changes belong to the owner of the state directory, who must be able to read and
// remove them; root follows no link in there, and writes nowhere but where the owner of the
// file beside the socket may.
func TestAnotherUsersStateDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	const user, group = 12345, 23456
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "weir.sock")
	if err := errors.Join(os.Mkdir(state, 0o750), os.Chown(state, user, group), os.WriteFile(PlaceOf(socket), []byte(state+"\n"), 0o644), os.Chown(PlaceOf(socket), user, group)); err != nil {
		t.Fatal(err)
	}
	q, err := At(socket)
	if err == nil {
		err = q.Add(block("192.0.2.1"))
	}
	if err != nil {
		t.Fatal(err)
	}
	names, err := q.Waiting()
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	for _, path := range []string{"queue", filepath.Join("queue", names[0])} {
		var s unix.Stat_t
		if err := unix.Stat(filepath.Join(state, path), &s); err != nil || s.Uid != user || s.Mode&0o077 != 0 {
			t.Errorf("%s: user %d, mode %o, %v", path, s.Uid, s.Mode, err)
		}
	}

	roots := filepath.Join(dir, "root")
	if err := errors.Join(os.Mkdir(roots, 0o700), os.WriteFile(PlaceOf(socket), []byte(roots+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if q, err = At(socket); err == nil {
		err = q.Add(block("192.0.2.1"))
	}
	if err == nil || !strings.Contains(err.Error(), "belongs to user 0, not 12345") {
		t.Error(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(state, "queue")), os.Symlink(roots, filepath.Join(state, "queue"))); err != nil {
		t.Fatal(err)
	}
	if err := Of(state, user).Add(block("192.0.2.1")); err == nil {
		t.Error("a link was followed")
	}
	if left, err := os.ReadDir(roots); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func FuzzParse(f *testing.F) {
	q := In(f.TempDir())
	if err := q.Add(block("192.0.2.1")); err != nil {
		f.Fatal(err)
	}
	names, err := q.Waiting()
	if err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(q.state, directory, names[0]))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"time":"2026-01-01T00:00:00Z","by":{"uid":0},"change":{"action":"allow","entries":["x"]}}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text)
		if err != nil {
			return
		}
		if c.Note != nil {
			return
		}
		if err := c.Change.Check(); err != nil || c.Time.IsZero() || c.Change.UID != c.By.UID {
			t.Errorf("%+v: %v", c, err)
		}
	})
}

// A change that waits was given when it was, however the clock was set since; of another boot only where both
// clocks were right.
func TestGivenByTheHostsTime(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Now()
	for _, c := range []struct {
		what      string
		ago       time.Duration // time that the host has run since then
		by        time.Duration // size of the clock's step since then
		boot      string
		synced    bool
		want      time.Duration // ago
		alsoSince bool          // or as the clock says, where it is right
	}{
		{"the clock is right", time.Hour, 0, "", false, time.Hour, false},
		{"it was in 1970", time.Hour, now.Sub(time.Unix(0, 0)), "", false, time.Hour, false},
		{"it was ten years ahead", time.Hour, -3650 * day, "", true, time.Hour, false},
		{"it was a second ahead", time.Minute, -time.Second, "", true, time.Minute, false},
		{"another boot, and the clock was not right", time.Hour, 30 * day, "another", false, 0, false},
		{"another boot", time.Hour, 0, "another", true, 0, true},
	} {
		m := momentOf(now.Add(-c.ago))
		m.Synced = c.synced
		if c.boot != "" {
			m.Boot = c.boot
		}
		before := now.Add(-c.ago - c.by).Round(0)
		got := m.wall(before)
		ago := time.Since(got)
		if off := ago - c.want; off.Abs() > time.Minute && !(c.alsoSince && got.Equal(before)) {
			t.Errorf("%s: %v ago, want %v", c.what, ago, c.want)
		}
	}
}

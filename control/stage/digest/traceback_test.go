package digest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/capture"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/blocked"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/crash"
	"weir/tests/data"
	"weir/tests/must"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	eth0  = netif.Target{Netns: "/run/netns/l-a b", Iface: "eth0-x"}
)

// slice returns a slice of n packets, that of the i-th second.
func slice(t testing.TB, i, n int) *digest.Slice {
	t.Helper()
	g, err := blocked.For(1000, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	from := start.Add(time.Duration(i) * time.Second)
	s := &digest.Slice{Seed: hash.Seed{byte(i + 1)}, From: from, To: from.Add(time.Second), Packets: uint64(n), Filter: blocked.New(g)}
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	for range n {
		s.Filter.Observe(rng.Uint64())
	}
	return s
}

func open(t testing.TB, c ArchiveConfig) (*Archive, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	a, err := OpenArchive(c, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return a, &log
}

func all(file) bool { return true }

// read returns the slices of an archive.
func read(t testing.TB, a *Archive, wanted func(file) bool) (found []archived) {
	t.Helper()
	for s, err := range a.slices(t.Context(), wanted) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, s)
	}
	return found
}

func same(a, b *digest.Slice) bool {
	return a.Seed == b.Seed && a.From.Equal(b.From) && a.To.Equal(b.To) && a.Packets == b.Packets &&
		a.Filter.Geometry == b.Filter.Geometry && slices.Equal(a.Filter.Words(), b.Filter.Words())
}

// An archive's slices survive reopening, only the owner may read them, and
// sparse slices take less.
func TestArchive(t *testing.T) {
	c := ArchiveConfig{Dir: filepath.Join(t.TempDir(), "a", "digests"), Keep: 100 * 365 * 24 * time.Hour, Size: 1 << 30}
	a, _ := open(t, c)
	var want []*digest.Slice
	for i, n := range []int{1000, 500, 10, 1} {
		want = append(want, slice(t, i, n))
		a.put(eth0, want[i])
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(c.Dir, "*"))
	var sizes []int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
		sizes = append(sizes, info.Size())
	}
	t.Logf("%d bytes in memory; on disk %v", want[0].Filter.Bytes(), sizes)
	if len(sizes) != 4 || !slices.IsSortedFunc(sizes, func(a, b int64) int { return int(b - a) }) || sizes[3] > 100 {
		t.Errorf("sizes %v", sizes)
	}

	// A foreign file, and a leftover of a killed process.
	os.WriteFile(filepath.Join(c.Dir, "readme.txt"), nil, 0o600)
	leftovers := []string{files[0] + ".new"}
	for _, path := range leftovers {
		os.WriteFile(path, nil, 0o600)
	}
	a, log := open(t, c)
	defer a.Close()
	found := read(t, a, all)
	if len(found) != len(want) {
		t.Fatalf("%d slices, want %d: %s", len(found), len(want), log)
	}
	for i, s := range found {
		if s.Target != eth0 || !same(s.Slice, want[i]) {
			t.Errorf("slice %d differs: %+v, %+v", i, s, want[i])
		}
	}
	at := start.Add(1500 * time.Millisecond)
	if found := read(t, a, func(f file) bool { return f.to.After(at) && !f.from.After(at) }); len(found) != 1 || !same(found[0].Slice, want[1]) {
		t.Errorf("%d slices at an instant", len(found))
	}
	for _, path := range leftovers {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s, a partial file, is left", path)
		}
	}
	if n := a.Counts(); n.Files != 4 || n.Bytes != sizes[0]+sizes[1]+sizes[2]+sizes[3] || n.Errors != 0 {
		t.Errorf("%+v", n)
	}
}

// The oldest slices are removed when they are too old, or when there are too
// many.
func TestArchiveIsBounded(t *testing.T) {
	c := ArchiveConfig{Dir: t.TempDir(), Keep: 24 * time.Hour, Size: 1 << 30}
	c.Keep = time.Since(start) - 3*time.Second // those of the first two seconds are older
	a, _ := open(t, c)
	for i := range 6 {
		a.put(eth0, slice(t, i, 1000))
	}
	a.Close()
	a, _ = open(t, c)
	if found := read(t, a, all); len(found) < 2 || len(found) > 4 || !found[len(found)-1].From.Equal(start.Add(5*time.Second)) {
		t.Errorf("%d slices left", len(found))
	}
	a.Close()

	c.Keep, c.Size = 100*365*24*time.Hour, 3*1300+100
	c.Dir = t.TempDir()
	a, _ = open(t, c)
	for i := range 6 {
		a.put(eth0, slice(t, i, 1000))
	}
	a.Close()
	if n := a.Counts(); n.Bytes > c.Size || n.Files < 2 {
		t.Errorf("%+v, at most %d bytes", n, c.Size)
	}
	if files, _ := os.ReadDir(c.Dir); len(files) != a.Counts().Files {
		t.Errorf("%d files", len(files))
	}
}

// A clock that is ahead does not empty an archive: by age, few slices are removed for each one that
// is written. By size, as many are as must be.
func TestArchiveOfAClockThatIsAhead(t *testing.T) {
	const before = 40
	c := ArchiveConfig{Dir: t.TempDir(), Keep: 24 * time.Hour, Size: 1 << 30}
	now := time.Now()
	sliceAt := func(at time.Time) *digest.Slice {
		s := slice(t, 0, 1000)
		s.From, s.To = at, at.Add(time.Second)
		return s
	}
	for i := range before {
		s := sliceAt(now.Add(-30*24*time.Hour + time.Duration(i)*time.Second))
		must.Write(t, filepath.Join(c.Dir, nameOf(archived{eth0, s})), encode(s))
	}
	a, _ := open(t, c)
	written := 0
	write := func(n int) ArchiveCounts {
		t.Helper()
		for range n {
			written++
			a.put(eth0, sliceAt(now.Add(time.Duration(written)*time.Second)))
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		a, _ = open(t, c)
		return a.Counts()
	}
	if n := write(1); n.Files != before-2+1 {
		t.Errorf("%d of %d slices are left", n.Files-1, before)
	}
	for range 2 {
		write(16)
	}
	if n := a.Counts(); n.Files != written {
		t.Errorf("%d slices, want the last %d", n.Files, written)
	}
	c.Size = a.Counts().Bytes / 4
	a.limit(c)
	if n := write(1); n.Bytes > c.Size || n.Files < 2 {
		t.Errorf("%+v, at most %d bytes", n, c.Size)
	}
	a.Close()
}

// Slices of a clock that was ahead give way to those that are recorded once it is right.
func TestArchiveAfterAClockThatWasAhead(t *testing.T) {
	c := ArchiveConfig{Dir: t.TempDir(), Keep: 24 * time.Hour, Size: 1 << 30}
	now := time.Now()
	put := func(a *Archive, from time.Time, n int) {
		for i := range n {
			s := slice(t, 0, 1000)
			s.From = from.Add(time.Duration(i) * time.Second)
			s.To = s.From.Add(time.Second)
			a.put(eth0, s)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := open(t, c)
	put(a, now.Add(365*24*time.Hour), 10)
	c.Size = a.Counts().Bytes
	a, _ = open(t, c)
	put(a, now.Add(-time.Minute), 5)
	a, _ = open(t, c)
	defer a.Close()
	right := 0
	for _, f := range a.files {
		if f.from.Before(now) {
			right++
		}
	}
	if right != 5 || len(a.files) != 10 {
		t.Errorf("%d slices are left, %d of them of the right time, want 10 and 5", len(a.files), right)
	}
}

// If the disk cannot be written to, slices are lost and counted, and the error
// is logged once.
func TestArchiveThatFails(t *testing.T) {
	c := ArchiveConfig{Dir: filepath.Join(t.TempDir(), "digests"), Keep: 100 * 365 * 24 * time.Hour, Size: 1 << 30}
	a, log := open(t, c)
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		a.put(eth0, slice(t, i, 10))
	}
	a.Close()
	if n := a.Counts(); n.Errors != 3 || n.Files != 0 {
		t.Errorf("%+v", n)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("logged %d times: %s", n, log)
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	if _, err := OpenArchive(ArchiveConfig{Dir: file}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file was accepted as a directory")
	}
}

// Slices of many interfaces, which end at once, are all written.
func TestArchiveOfManyInterfaces(t *testing.T) {
	a, log := open(t, ArchiveConfig{Dir: t.TempDir(), Keep: 100 * 365 * 24 * time.Hour, Size: 1 << 30})
	same := slice(t, 0, 10)
	for i := range 64 {
		a.put(netif.Target{Iface: fmt.Sprint("eth", i)}, same)
	}
	a.Close()
	if n := a.Counts(); n.Files != 64 || n.Errors != 0 {
		t.Errorf("%+v: %s", n, log)
	}
}

// TestDurable lets the machine crash, and steps fail, while slices are written. Those
// that were are there.
func TestDurable(t *testing.T) {
	c := ArchiveConfig{Keep: 100 * 365 * 24 * time.Hour, Size: 1 << 30}
	crash.Test{
		Begin: "[]",
		Work: func(t *testing.T, d *crash.Disk) {
			c.Dir = filepath.Join(d.Dir, "digests")
			var a *Archive
			for range 4 {
				if _ = d.Do(func() (err error) { a, err = OpenArchive(c, slog.New(slog.DiscardHandler)); return err }, "[]"); a != nil {
					break
				}
			}
			defer a.Close()
			var saved []int
			for i := range 3 {
				next := append(slices.Clone(saved), i+1)
				if d.Do(func() error { return a.save(archived{eth0, slice(t, i, i+1)}) }, fmt.Sprint(next)) != nil && d.Fails() {
					return // it may be there
				}
				saved = next
			}
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			c.Dir = filepath.Join(dir, "digests")
			a, _ := open(t, c)
			defer a.Close()
			found := []int{}
			for _, s := range read(t, a, all) {
				found = append(found, int(s.Packets))
			}
			return fmt.Sprint(found), nil
		},
	}.Run(t)
}

// A recurring error is logged once, even if writing succeeds in between or
// other files are concerned; a different error is logged.
func TestArchiveLogsOnce(t *testing.T) {
	c := ArchiveConfig{Dir: t.TempDir(), Keep: time.Hour, Size: 1 << 30}
	a, log := open(t, c)
	logged := func(want int) {
		t.Helper()
		if n := strings.Count(log.String(), "level=ERROR"); n != want {
			t.Fatalf("logged %d times, want %d:\n%s", n, want, log)
		}
	}
	// Slices that cannot be removed, while others are written.
	for i := range 2 {
		name := filepath.Join("stays", string('a'+rune(i)))
		if err := os.MkdirAll(filepath.Join(c.Dir, name, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		a.add(file{name: name})
	}
	now := time.Now()
	for i := range 3 {
		s := slice(t, i, 10)
		s.From, s.To = now, now.Add(time.Duration(i))
		a.put(eth0, s)
	}
	a.Close()
	logged(1)
	if n := a.Counts(); n.Errors != 0 || n.Files != 5 {
		t.Fatalf("%+v", n)
	}
	a.files = a.files[1:] // the next one cannot be removed for the same reason
	a.tidy(now)
	logged(1)

	for i, err := range []error{
		&os.PathError{Op: "write", Path: "1", Err: syscall.ENOSPC}, &os.PathError{Op: "write", Path: "2", Err: syscall.ENOSPC},
		&os.PathError{Op: "write", Path: "2", Err: syscall.EROFS}, &os.LinkError{Op: "rename", Old: "3", Err: syscall.EROFS},
		&os.LinkError{Op: "rename", Old: "4", Err: syscall.EROFS}, nil, &os.LinkError{Op: "rename", Old: "5", Err: syscall.EROFS},
	} {
		a.ended(err)
		logged(1 + []int{1, 1, 2, 3, 3, 3, 4}[i])
	}

	// Too many slices: some are written and others added, so that the number
	// stays the same.
	a.queue = make(chan archived, 2)
	for range 3 {
		for range 3 {
			a.put(eth0, slice(t, 0, 1))
		}
		<-a.queue
		a.ended(nil)
		logged(6)
	}
	<-a.queue
	a.ended(nil)
	for range 3 {
		a.put(eth0, slice(t, 0, 1))
	}
	logged(7)
}

// A query reads a bounded part of an archive, waits for its turn, and logs a
// damaged slice once.
func TestQuestionsOfAnArchive(t *testing.T) {
	c := ArchiveConfig{Dir: t.TempDir(), Keep: 100 * 365 * 24 * time.Hour, Size: 1 << 40}
	a, log := open(t, c)
	for i := range 3 {
		a.put(eth0, slice(t, i, 10))
	}
	a.Close()
	ask := func(ctx context.Context, wanted func(file) bool) (n int, err error) {
		for _, err := range a.slices(ctx, wanted) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if err := os.Truncate(filepath.Join(c.Dir, a.files[1].name), 20); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := ask(t.Context(), all); n != 2 || err != nil {
			t.Errorf("%d slices, %v", n, err)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), a.files[1].name) {
		t.Errorf("logged %d times: %s", n, log)
	}

	for _, more := range [][]file{
		{{name: "large", size: mostRead}},
		slices.Repeat([]file{{name: "sparse", size: 60}}, mostRead/leastSlice-1),
	} {
		before := a.files
		a.files = slices.Concat(before, more)
		if n, err := ask(t.Context(), all); n != 0 || !errors.Is(err, ErrTooMuch) {
			t.Errorf("%d slices, %v", n, err)
		}
		if n, err := ask(t.Context(), func(f file) bool { return len(f.name) > len("sparse") }); n != 2 || err != nil {
			t.Errorf("%d slices, %v", n, err)
		}
		a.files = before
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range a.slices(t.Context(), all) {
		if n, err := ask(ctx, all); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("two at a time: %d slices, %v", n, err)
		}
		if n, err := ask(ctx, func(file) bool { return false }); n != 0 || err != nil {
			t.Errorf("%d slices of none, %v", n, err)
		}
		break
	}
	if n, err := ask(t.Context(), all); n != 2 || err != nil {
		t.Errorf("%d slices, %v", n, err)
	}
}

// A slice that another version has written is not read as one of this version.
func TestDecodeOtherVersion(t *testing.T) {
	b := encode(slice(t, 1, 100))
	b[4] = 1
	if _, err := decode(b); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Error(err)
	}
}

// FuzzDecode checks that decoded slices encode to the same bytes.
func FuzzDecode(f *testing.F) {
	good := encode(slice(f, 1, 100))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(prefix))
	for _, i := range []int{3, 4, 9, 40, 64, 68, 80, len(good) - 1} {
		bad := bytes.Clone(good)
		bad[i] ^= 0x41
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode(b)
		if err == nil && !bytes.Equal(encode(s), b) {
			t.Errorf("%x decodes, but encodes differently", b)
		}
	})
}

// seen returns a node that has seen packets, by their digests with one secret.
func seen(name string, chance float64, packets ...[]byte) Node {
	secret := hash.NewSecret(hash.Seed{1})
	return Node{name, func(_ context.Context, q api.TraceQuestion) (*api.Traced, error) {
		i := api.TracedInterface{Name: "eth0"}
		for _, p := range q.Packets {
			d, err := digest.Sum(secret, p.Data)
			if err != nil {
				return nil, err
			}
			traced := api.TracedPacket{Chance: chance}
			for k, have := range packets {
				if sum, _ := digest.Sum(secret, have); sum == d {
					traced.Slices = []api.TracedSlice{{Start: start.Add(time.Duration(k)), Length: 1, Chance: chance}}
				}
			}
			i.Packets = append(i.Packets, traced)
		}
		return &api.Traced{Version: digest.Version, Interfaces: []api.TracedInterface{i}}, nil
	}}
}

// datagram returns an IPv4 frame with UDP and a number, after some hops.
func datagram(number, hops int) []byte {
	f := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: 9,
	})
	binary.BigEndian.PutUint16(f[18:], uint16(number)) // the identification
	f[22] -= byte(hops)
	return f
}

// recorded returns a capture of frames, a millisecond apart.
func recorded(t testing.TB, frames ...[]byte) *capture.Reader {
	t.Helper()
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, "test")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if err := w.Write(capture.Packet{Time: start.Add(time.Duration(i) * time.Millisecond), Data: f, Length: len(f)}, capture.Note{Interface: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := capture.NewReader("test", &b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// draw formats a path as in a(b(c),d).
func draw(h Hop) string {
	var from []string
	for _, f := range h.From {
		from = append(from, draw(f))
	}
	if len(from) == 0 {
		return h.Node
	}
	return h.Node + "(" + strings.Join(from, ",") + ")"
}

func TestPath(t *testing.T) {
	one, two := datagram(1, 0), datagram(2, 0)
	q := Question{From: "d", Window: time.Second, Nodes: []Node{
		seen("a", 0.1, one[14:]), seen("b", 0.2, one[14:], two[14:]), seen("c", 0.3), seen("d", 0.4, one[14:], two[14:]),
		seen("e", 0.05, one[14:]), // a false positive, far from the path
		{"f", func(context.Context, api.TraceQuestion) (*api.Traced, error) { return nil, errors.New("asleep") }},
	}}
	for _, s := range []string{"a-b", "b-d", "d-c", "c-a", "c-e", "f:b"} {
		var l Link
		if err := l.UnmarshalText([]byte(s)); err != nil {
			t.Fatal(err)
		}
		q.Links = append(q.Links, l)
	}
	if err := q.Check(); err != nil {
		t.Fatal(err)
	}
	asked, untraced, err := Read(t.Context(), recorded(t, datagram(1, 3), []byte("no packet at all"), datagram(2, 5), datagram(3, 0)), 0)
	if err != nil || len(asked) != 3 || untraced != 1 || asked[1].Number != 3 || asked[0].Flow != "udp 192.0.2.1:5 > 198.51.100.1:9" {
		t.Fatalf("%+v, %d, %v", asked, untraced, err)
	}
	traces, err := q.Ask(t.Context(), asked)
	if err == nil || err.Error() != "node f: asleep" {
		t.Errorf("error %v", err)
	}
	for i, want := range []struct {
		path  string
		extra float64
		seen  int
	}{{"d(b(a))", 0.3, 4}, {"d(b)", 0.1 + 0.3, 2}, {"d", 0, 0}} {
		got := traces[i]
		if draw(*got.Path) != want.path || got.Extra < want.extra-1e-9 || got.Extra > want.extra+1e-9 || len(got.Seen) != want.seen {
			t.Errorf("packet %d: %s, %g extra, %d have seen it; want %+v", i+1, draw(*got.Path), got.Extra, len(got.Seen), want)
		}
	}
	// More packets than one query takes.
	var many [][]byte
	for i := range 2*api.MaxTraced + 10 {
		many = append(many, datagram(i, 0))
	}
	asked, _, _ = Read(t.Context(), recorded(t, many...), 0)
	traces, _ = q.Ask(t.Context(), asked)
	for i, trace := range traces {
		if want := map[int]int{1: 4, 2: 2}[i]; len(trace.Seen) != want {
			t.Errorf("packet %d: %d have seen it, want %d", i, len(trace.Seen), want)
		}
	}
}

// A node whose digests cover checksums may have missed a packet that passed, but what it
// has seen did pass.
func TestOlderDigests(t *testing.T) {
	one, two := datagram(1, 0), datagram(2, 0)
	old := seen("old", 0.1, one[14:])
	ask := old.Ask
	old.Ask = func(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
		t, err := ask(ctx, q)
		if err == nil {
			t.Version, t.Interfaces[0].Since = 0, &start
		}
		return t, err
	}
	asked, _, err := Read(t.Context(), recorded(t, one, two), 0)
	if err != nil {
		t.Fatal(err)
	}
	traces, err := Question{Window: time.Second, Nodes: []Node{old}}.Ask(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	for i, unknown := range []int{0, 1} {
		if got := traces[i]; len(got.Unknown) != unknown || len(got.Seen) != 1-unknown {
			t.Errorf("packet %d: %+v", i+1, got)
		}
	}
}

func TestInvalidQuestions(t *testing.T) {
	for _, s := range []string{"", "a", "a-", "-b", "a-b-c", "a-a", "a:b:c"} {
		var l Link
		if err := l.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("link %q is %+v", s, l)
		}
	}
	a, b := seen("a", 0), seen("b", 0)
	for want, q := range map[string]Question{
		"duplicate node a":      {Nodes: []Node{a, a}, Window: 1},
		"unknown node c":        {Nodes: []Node{a, b}, Links: []Link{{"a", "c"}}, From: "a", Window: 1},
		"a path needs the node": {Nodes: []Node{a, b}, Links: []Link{{"a", "b"}}, Window: 1},
		"unknown node d":        {Nodes: []Node{a}, From: "d", Window: 1},
		"more than 0":           {Nodes: []Node{a}},
	} {
		if err := q.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A packet with a decreasing TTL is a loop at its third sighting; one that is
// seen on both sides of a router, or duplicated, is not, even in captures of
// both sides.
func TestLoopsInCaptures(t *testing.T) {
	loops, packets, err := Loops(t.Context(), recorded(t,
		datagram(1, 0), datagram(2, 0), datagram(1, 2), datagram(2, 1), datagram(3, 0), datagram(3, 0), datagram(3, 0),
		datagram(1, 4), datagram(2, 1), datagram(1, 6)))
	if err != nil || packets != 10 || len(loops) != 1 {
		t.Fatalf("%+v in %d packets, %v", loops, packets, err)
	}
	if l := loops[0]; l.Number != 8 || l.First != 64 || l.TTL != 60 || l.Flow != "udp 192.0.2.1:5 > 198.51.100.1:9" {
		t.Errorf("%+v", l)
	}
	for _, name := range []string{"fix2", "rtsp", "ssh-dups"} {
		r, err := capture.Open(filepath.Join(data.Dir(t), "pcap", name+".pcap.gz"))
		if err != nil {
			t.Fatal(err)
		}
		loops, packets, err := Loops(t.Context(), r)
		if err != nil || packets < 300 || len(loops) != 0 {
			t.Errorf("%s: %+v in %d packets, %v", name, loops, packets, err)
		}
		r.Close()
	}
}

// A capture may have no end.
func TestReadUntilTheContextEnds(t *testing.T) {
	ended, end := context.WithCancelCause(t.Context())
	why := errors.New("a signal")
	end(why)
	if _, packets, err := Loops(ended, recorded(t, datagram(1, 0), datagram(1, 2))); !errors.Is(err, why) || packets > 0 {
		t.Errorf("loops: %d packets, %v", packets, err)
	}
	if asked, _, err := Read(ended, recorded(t, datagram(1, 0)), 0); !errors.Is(err, why) || len(asked) > 0 {
		t.Errorf("packets: %v, %v", asked, err)
	}
}

// part returns what is recorded in slices of a length.
func part(t *testing.T, slice time.Duration, archive ArchiveConfig) *Part {
	t.Helper()
	s := Spec{Rate: quantity.Rate{Value: 1000}, Slice: quantity.Duration(slice), FPR: 0.01, Keep: quantity.Duration(time.Minute)}
	s.Archive.Keep, s.Archive.Size = quantity.Duration(archive.Keep), quantity.Size(archive.Size)
	p, err := s.Part()
	if err != nil {
		t.Fatal(err)
	}
	return p.(*Part)
}

// follow makes a recorder follow a part.
func follow(t *testing.T, r *Recorder, next *Part) {
	t.Helper()
	r.Prepare(next)
	r.Finish(next)
	r.Follow(next)
}

// The archive outlasts the parts of a recorder, within the limits of each, and closes with the
// last one.
func TestArchiveOutlastsItsPart(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	follow(t, r, nil)
	if _, err := r.Trace(t.Context(), api.TraceQuestion{}); !errors.Is(err, api.ErrNoDigests) || r.archive != nil {
		t.Error(err)
	}
	first, second := part(t, time.Second, ArchiveConfig{}), part(t, time.Second, ArchiveConfig{Keep: time.Hour, Size: 1 << 20})
	follow(t, r, first)
	r.Prepare(second)
	if r.Follow(first); r.archive != nil {
		t.Error("the archive of a part that was not followed is open")
	}
	follow(t, r, second)
	open := r.archive
	third := part(t, 2*time.Second, ArchiveConfig{Keep: 2 * time.Hour, Size: 1 << 20})
	if follow(t, r, third); r.archive != open || open.config.Keep != 2*time.Hour {
		t.Errorf("the archive has the limits %+v, not %+v", open.config, third.Archive)
	}
	eth0 := &record{Target: netif.Target{Iface: "eth0"}}
	r.keep(eth0, &digest.Slice{From: time.Now(), To: time.Now(), Filter: blocked.New(third.Filter)})
	if r.Close(); open.Counts().Files != 1 || open.Counts().Errors != 0 {
		t.Errorf("%+v", open.Counts())
	}
}

// An archive whose directory cannot be made is left out, until it can be.
func TestArchiveThatCannotBeMade(t *testing.T) {
	var log bytes.Buffer
	state := t.TempDir()
	file := filepath.Join(state, "digests")
	must.Write(t, file, "")
	r := NewRecorder(state, nil, slog.New(slog.NewTextHandler(&log, nil)))
	p := part(t, time.Second, ArchiveConfig{Keep: time.Hour, Size: 1 << 20})
	eth0 := &record{Target: netif.Target{Iface: "eth0"}}
	keep := func() {
		follow(t, r, p)
		r.keep(eth0, &digest.Slice{From: time.Now(), To: time.Now(), Filter: blocked.New(p.Filter)})
	}
	keep()
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || r.archive != nil {
		t.Errorf("logged %d times: %s", n, &log)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	keep()
	open := r.archive
	if r.Close(); open == nil || open.Counts().Files != 1 {
		t.Errorf("there is no archive: %s", &log)
	}
}

// The counters of an interface that is named go on when it has been gone for longer than slices are
// kept, and when nothing was recorded for a while. One that matches a pattern is forgotten.
func TestCountersNeverGoBack(t *testing.T) {
	r := NewRecorder(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	follow(t, r, part(t, time.Second, ArchiveConfig{}))
	named, other := netif.Target{Iface: "eth0"}, netif.Target{Iface: "veth7"}
	tick := func(incoming ...stage.Interface) { r.Tick(0, incoming, []netif.Target{named}) }
	there := func() []stage.Interface { // with other programs each time
		return []stage.Interface{{Target: named, Stats: new(loader.Stats)}, {Target: other, Stats: new(loader.Stats)}}
	}
	count := func() {
		t.Helper()
		for _, l := range r.logs {
			l.now = l.now.plus(counts{5, 4, 3})
		}
	}
	want := func(when string, counted map[netif.Target][]float64) {
		t.Helper()
		got := make(map[netif.Target][]float64)
		for _, s := range r.Samples() {
			if s.Counter {
				got[s.At] = append(got[s.At], s.Value)
			}
		}
		if !reflect.DeepEqual(got, counted) {
			t.Errorf("%s: %v, want %v", when, got, counted)
		}
	}
	once, twice, thrice := []float64{5, 4, 3}, []float64{10, 8, 6}, []float64{15, 12, 9}
	tick(there()...)
	count()
	want("at first", map[netif.Target][]float64{named: once, other: once})
	tick()
	want("gone", map[netif.Target][]float64{named: once})
	if seen, err := r.Find(t.Context(), nil); err != nil || len(seen) > 0 {
		t.Errorf("asked: %+v, %v", seen, err)
	}
	tick(there()...)
	count()
	want("back", map[netif.Target][]float64{named: twice, other: once})
	follow(t, r, nil)
	want("off", map[netif.Target][]float64{})
	follow(t, r, part(t, 2*time.Second, ArchiveConfig{}))
	want("on again", map[netif.Target][]float64{named: twice, other: once})
	tick(there()...)
	count()
	want("on again, with packets", map[netif.Target][]float64{named: thrice, other: twice})
	r.Tick(0, nil, nil)
	want("neither there nor named", map[netif.Target][]float64{})
}

// However the clock is changed during a slice, it is found by the times of its
// packets, by the old clock and by the new one.
func TestSliceOfAClockThatIsSet(t *testing.T) {
	p := &Part{Config: digest.Config{Slice: time.Second}}
	at := start.Add
	for _, s := range []struct {
		name       string
		begun, end time.Duration // by the clock
		took       time.Duration
		from, to   time.Duration
	}{
		{"left alone", 0, time.Second, time.Second, 0, time.Second},
		{"set forward by an hour", 0, time.Hour + time.Second, time.Second, 0, time.Hour + time.Second},
		{"set back by an hour", time.Hour, 900 * time.Millisecond, 900 * time.Millisecond, 0, time.Hour + 900*time.Millisecond},
		{"set back within the slice", 500 * time.Millisecond, time.Second, time.Second, 0, 1500 * time.Millisecond},
		{"set back while there was no recorder", time.Hour, 0, -time.Hour, -time.Second, time.Hour + time.Second},
	} {
		from, to := p.span(at(s.begun), at(s.end), s.took)
		if !from.Equal(at(s.from)) || !to.Equal(at(s.to)) {
			t.Errorf("%s: from %v to %v, want %v to %v", s.name, from.Sub(start), to.Sub(start), s.from, s.to)
		}
		slice := digest.Slice{From: from, To: to}
		for _, packet := range []time.Duration{s.begun, s.end - 1} {
			if !slice.Overlaps(at(packet), at(packet)) {
				t.Errorf("%s: a packet of %v is not found", s.name, packet)
			}
		}
	}
	// The monotonic clock affects the age of a slice, not its length.
	now := time.Now()
	from, to := p.span(now, now.Add(time.Second), time.Second)
	if to.Sub(now) != time.Second || strings.Contains(from.String(), "m=") || !strings.Contains(to.String(), "m=") {
		t.Errorf("from %v to %v", from, to)
	}
}

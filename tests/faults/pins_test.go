package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// noticed is how soon lost pins and deleted state are noticed; and more on a busy machine.
const noticed = 10 * time.Second

// stream sends numbered packets from a listed and from an unlisted address until it is
// stopped, and fails the test when one of the former arrives.
type stream struct {
	t      *testing.T
	stop   chan struct{}
	all    sync.WaitGroup
	sent   atomic.Uint64 // of each kind
	clean  atomic.Uint64 // that came
	passed atomic.Uint64 // listed ones
	lossy  bool          // listed ones may pass, and are counted
}

// Their numbers are not those of other frames of the test.
const (
	listedNumbers   = 1 << 32
	unlistedNumbers = 1 << 33
)

func (g *ground) stream(listed, unlisted string) *stream {
	g.t.Helper()
	s := &stream{t: g.t, stop: make(chan struct{})}
	frame := func(src string, number uint64) []byte {
		return g.Numbered(packet.Frame(key.Tuple{
			Src: netip.MustParseAddr(src), Dst: g.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 4001, DstPort: 9,
		}), number)
	}
	tx, rx := g.A.Sender(g.t), g.B.Receiver(g.t)
	bad, good := frame(listed, 0), frame(unlisted, unlistedNumbers)
	s.all.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for n := uint64(1); ; n++ {
			select {
			case <-s.stop:
				return
			case <-pace.C:
			}
			lab.Renumber(bad, listedNumbers+n)
			lab.Renumber(good, unlistedNumbers+n)
			if err := errors.Join(tx.TrySend(bad), tx.TrySend(good)); err != nil && !errors.Is(err, unix.ENOBUFS) {
				s.t.Error(err)
				return
			}
			s.sent.Store(n)
		}
	})
	s.all.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			f, err := rx.Receive(100 * time.Millisecond)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if err != nil {
				s.t.Error(err)
				return
			}
			switch n, ok := lab.NumberOf(f); {
			case !ok:
			case n >= unlistedNumbers:
				s.clean.Add(1)
			case n >= listedNumbers:
				if s.passed.Add(1) <= 3 && !s.lossy {
					s.t.Errorf("the listed packet %d has come through", n-listedNumbers)
				}
			}
		}
	})
	g.t.Cleanup(s.end)
	return s
}

// end ends the stream, of which nearly all unlisted packets must have come.
func (s *stream) end() {
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	s.all.Wait()
	sent, clean := s.sent.Load(), s.clean.Load()
	s.t.Logf("%d listed packets sent, %d passed; %d of as many unlisted ones passed", sent, s.passed.Load(), clean)
	if clean < sent*9/10 || sent == 0 {
		s.t.Errorf("of %d unlisted packets, %d have come: the test sees little", sent, clean)
	}
}

// ownPins moves the test to its own mounts, and the pins to a BPF file system of its own.
func ownPins(t *testing.T) (g *ground, dir string) {
	t.Helper()
	private(t)
	g = newGround(t)
	nowhere := g.pins // for its cleanup
	dir = filepath.Join(g.dir, "bpf")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	g.mountPins(dir)
	g.pins = filepath.Join(dir, "weir")
	t.Cleanup(func() {
		g.weir(anyCode, "detach", "--all", "--pins", g.pins)
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
		}
		g.pins = nowhere
	})
	g.interfaces = fmt.Sprintf("[{name: %s, netns: %s, egress: true}, {name: lo, netns: %s, hook: tc, egress: true}]", g.B.Iface, g.B.Netns, g.B.Netns)
	g.configure("lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}\nreplies: pass")
	return g, dir
}

func (g *ground) mountPins(dir string) {
	g.t.Helper()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		g.t.Fatal(err)
	}
}

// allPins returns the inodes of all pins, by path.
func (g *ground) allPins() map[string]uint64 {
	g.t.Helper()
	all := map[string]uint64{}
	err := filepath.WalkDir(g.pins, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		var s unix.Stat_t
		if err == nil && !e.IsDir() && unix.Lstat(path, &s) == nil {
			all[path] = s.Ino
		}
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return all
}

// filtered reports whether `weir status` says that everything is filtered.
func (g *ground) filtered() bool {
	g.t.Helper()
	out, _ := g.ask(anyCode, "status", "--json")
	var s struct{ Filtered bool }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		g.t.Fatalf("%v:\n%s", err, out)
	}
	return s.Filtered
}

// within waits until something is so, which must be soon.
func (g *ground) within(what string, is func() bool) {
	g.t.Helper()
	began := time.Now()
	g.until(what, is)
	if took := time.Since(began); took > noticed {
		g.t.Logf("%s: took %v", what, took)
	}
}

// again waits until all these pins are there again, and the status says so.
func (g *ground) again(names []string) {
	g.t.Helper()
	g.within("the pins are made again", func() bool {
		now := g.allPins()
		for _, path := range names {
			if now[path] == 0 {
				return false
			}
		}
		return true
	})
	g.within("everything is filtered again", g.filtered)
}

// restart kills the daemon and starts the next one while packets come.
func (g *ground) restart(d *daemon, s *stream) *daemon {
	g.t.Helper()
	d.kill()
	was := s.sent.Load()
	g.until("packets come", func() bool { return s.sent.Load() > was+50 })
	next := g.begin()
	if n := next.count("counters go on"); n != 4 { // in and out, of two interfaces
		g.t.Errorf("%d programs were adopted:\n%s", n, strings.Join(next.log(), "\n"))
	}
	return next
}

func sorted(pins map[string]uint64) (names []string) {
	for path := range pins {
		names = append(names, path)
	}
	slices.Sort(names)
	return names
}

// The BPF file system of the pins is unmounted, and mounted again; then the daemon is killed.
// No listed packet passes.
func TestPinsUnmounted(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g, dir := ownPins(t)
	d := g.begin()
	s := g.stream("10.0.0.1", "10.0.0.2")
	names := sorted(g.allPins())
	if len(names) < 80 {
		t.Fatalf("%d pins: %q", len(names), names)
	}
	for round := range 2 {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			g.within("the status says that pins are lost", func() bool { return !g.filtered() })
			out, _ := g.ask(4, "status")
			g.says("weir status", out, g.B.Iface, "NOT PINNED: filtered, native XDP, until weir (PID ", "no BPF file system")
			g.untilMetric(1, "weir_interface_unpinned", g.B.Iface, `direction="in"`)
			d.read = 0
			d.wait(`"level":"ERROR"`, g.B.Iface, "not pinned, so that filtering ends with weir", "no BPF file system")
			g.ask(0, "block", "10.0.3.0/24") // which takes another program
			g.filters("not pinned", []string{"10.0.0.1", "10.0.3.1"}, []string{"10.0.0.2"})
			_, out = g.ask(4, "reload")
			g.says("weir reload", out, g.B.Iface, "not pinned, so that filtering ends with weir")
			g.ask(0, "unblock", "10.0.3.0/24")
		}
		g.mountPins(dir)
		g.again(names)
		if round%2 == 0 {
			g.untilMetric(0, "weir_interface_unpinned", g.B.Iface, `direction="in"`)
			d.wait(`"level":"INFO"`, "pinned again: filtering goes on when weir ends")
		} else {
			d.wait(`"level":"ERROR"`, "pins were lost while weir ran: they are made again")
		}
		d = g.restart(d, s)
	}
	d.stop()
	s.end()
}

// Pins are removed one by one, and all at once; then the daemon is killed. No listed packet
// passes; nor if it is killed at any moment while it makes pins again that hold nothing.
func TestPinsRemoved(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	random := seed.New(t)
	g, _ := ownPins(t)
	d := g.begin()
	s := g.stream("10.0.0.1", "10.0.0.2")
	names := sorted(g.allPins())
	rounds := long.Rounds(2, 4, 40)
	at := random.Perm(len(names))
	for round := range rounds {
		lost := names[at[round%len(at)]]
		if round%10 == 1 {
			lost = g.pins // all
		}
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		g.again(names)
		d.wait("pins ", " were lost while weir ran")
		d = g.restart(d, s)
	}

	// Links are left.
	light := slices.DeleteFunc(slices.Clone(names), func(path string) bool { return filepath.Base(path) == "link" })
	for range rounds {
		for range 1 + random.IntN(5) {
			if err := os.RemoveAll(light[random.IntN(len(light))]); err != nil {
				t.Fatal(err)
			}
		}
		reload, err := net.Dial("unix", g.socket)
		if err == nil {
			_, err = fmt.Fprint(reload, "POST /v1/reload HTTP/1.1\r\nHost: weir\r\nContent-Length: 0\r\nContent-Type: application/json\r\n\r\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
		d.kill()
		reload.Close()
		d = g.begin()
		g.again(names)
	}
	d.stop()
	s.end()
}

// The files of the state directory are deleted; then the daemon is killed. No listed packet
// passes, and nothing that was acknowledged is lost.
func TestStateDeleted(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g, _ := ownPins(t)
	d := g.begin()
	g.ask(0, "block", "10.0.1.1")
	s := g.stream("10.0.1.1", "10.0.0.2")
	for round := range long.Or(1, 2) {
		all, err := filepath.Glob(filepath.Join(g.state, "*"))
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, path := range all {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		g.within("the state is written anew", func() bool { _, err := os.Stat(g.journal()); return err == nil })
		d.wait(`"level":"ERROR"`, "the journal was removed or replaced while weir ran")
		if round == 0 {
			// There is no place for it.
			if err := errors.Join(os.Rename(g.state, g.state+".away"), os.WriteFile(g.state, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			g.untilMetric(1, "weir_state_unsaved")
			out, _ := g.ask(0, "status")
			g.says("weir status", out, "UNSAVED: a restart would forget")
			d.wait(`"level":"ERROR"`, "a restart would forget what was changed")
			if err := os.Remove(g.state); err != nil {
				t.Fatal(err)
			}
			g.untilMetric(0, "weir_state_unsaved")
			d.wait("the state is on disk again")
		}
		g.within("everything is filtered", g.filtered)
		d = g.restart(d, s)
		if n := g.list("manual").Entries; n != 1 {
			t.Fatalf("round %d: %d manual entries are left", round, n)
		}
	}
	d.stop()
	s.end()
}

// A daemon that may open few files says so, and removes nothing, nor advises to.
func TestFewFiles(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g, _ := ownPins(t)
	d := g.begin()
	s := g.stream("10.0.0.1", "10.0.0.2")
	d.kill()
	names := sorted(g.allPins())
	failures := 0
	for _, files := range []uint64{24, 40, 64, 96, 128, 160} {
		few := g.run("weir")
		few.Path, few.Args = "/usr/bin/prlimit", append([]string{"prlimit", fmt.Sprintf("--nofile=%d:%d", files, files), few.Path}, few.Args[1:]...)
		few.start()
		var code int
		ended := false
		g.until("it ends or filters", func() bool {
			select {
			case <-few.ended:
				ended = true
			default:
			}
			return ended || few.count(`"msg":"filtering"`) > 0
		})
		if !ended {
			few.kill()
			continue
		}
		failures++
		if code = few.end(); code != 1 {
			t.Errorf("%d files: exit code %d", files, code)
		}
		text := strings.Join(few.log(), "\n")
		t.Logf("%d files: %s", files, text)
		if !strings.Contains(text, "too many open files") || strings.Contains(text, "damaged") || strings.Contains(text, "remove") || strings.Contains(text, "detach") {
			t.Errorf("%d files: %s", files, text)
		}
	}
	if failures == 0 {
		t.Error("there were enough files for all")
	}
	if now := sorted(g.allPins()); !slices.Equal(now, names) {
		t.Errorf("pins %q, want %q", now, names)
	}
	d = g.begin()
	d.stop()
	s.end()
}

// Where another mount namespace has the unmounted file system still, the next daemon takes the
// program over.
func TestPinsElsewhere(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g, dir := ownPins(t)
	d := g.begin()
	s := g.stream("10.0.0.1", "10.0.0.2")
	d.kill()
	g.mountPins(dir) // over the other, which keeps what is pinned there
	d = g.begin()
	d.read = 0
	d.wait(`"level":"WARN"`, g.B.Iface, "took over a program of weir's that filtered without pins")
	g.within("everything is filtered", g.filtered)
	d = g.restart(d, s)
	d.stop()
	s.end()
}

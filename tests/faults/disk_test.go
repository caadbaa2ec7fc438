package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// private moves the test to its own mount namespace, shared with the processes that
// it starts.
func private(t *testing.T) {
	t.Helper()
	lab.Root(t)
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
}

// mount mounts a small file system of the test's own, or changes one's options.
func mount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("weir", dir, "tmpfs", flags, "size=256k"); err != nil {
		t.Fatal(err)
	}
	if flags&unix.MS_REMOUNT != 0 {
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

func (g *ground) journal() string { return filepath.Join(g.state, "entries") }

// block adds many entries at once.
func (g *ground) block(code int, entries ...string) (stderr string) {
	g.t.Helper()
	_, stderr = g.command(strings.NewReader(strings.Join(entries, "\n")), code, "block", "--socket", g.socket, "-")
	return stderr
}

// On a full disk feeds still become active, and entries expire; a failure to
// save is reported. Manual entries, which would not survive a restart, are
// rejected.
func TestFullDisk(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	private(t)
	g := newGround(t)
	mount(t, g.state, 0)
	feed, fades := g.file("feed", "10.0.0.1\n"), g.file("fades", "10.4.0.1\n10.4.0.2\n")
	g.configure(fmt.Sprintf(`
lists:
  feed: {interval: 1s, jitter: 0s, sources: [{file: %s}]}
  fades: {interval: 1s, jitter: 0s, ttl: 1h, sources: [{file: %s}]}
`, feed, fades))
	d := g.begin()
	g.ask(0, "block", "10.1.0.1")
	g.ask(0, "block", "--ttl", "20s", "10.1.0.2") // when the disk will be full
	held := []string{"10.0.0.1", "10.1.0.1", "10.4.0.1", "10.4.0.2"}
	g.filters("with room", append(held, "10.1.0.2"), []string{"10.0.0.2", "10.4.0.3"})

	rubbish := filepath.Join(g.state, "rubbish")
	if err := os.WriteFile(rubbish, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	// The journal still has the rest of its last page.
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("10.2.%d.%d", i/256, i%256)
	}
	for n := len(many); n > 0; n /= 2 {
		g.block(anyCode, many[:n]...)
	}
	refused := []string{"10.3.0.1", "10.3.0.2", "10.3.0.3"}
	g.says("weir block", g.block(1, refused...), g.journal(), "nothing recorded", "no space left on device")
	g.file("feed", "10.0.0.1\n10.0.0.2\n")
	g.file("fades", "10.4.0.2\n10.4.0.3\n")
	g.untilDropped("10.0.0.2")
	g.untilDropped("10.4.0.3")
	g.until("10.1.0.2 has expired", func() bool { return len(g.came([]string{"10.1.0.2"})) > 0 })
	held = append(held, "10.0.0.2", "10.4.0.3")
	g.filters("full", held, refused)
	want := 1 + len(many) - len(g.came(many)) // without 10.1.0.2, which has expired
	if n := g.list("manual").Entries; n != want {
		t.Errorf("%d manual entries, want %d", n, want)
	}
	for _, says := range [][]string{
		{"feed read, but it could not be saved: a restart would find the old contents"},
		{"entries that have left the feed stay, since their expiry could not be recorded", g.journal()},
		{"the expiry of entries could not be recorded", g.journal()},
	} {
		d.read = 0
		d.wait(append(says, "no space left on device")...)
	}
	g.untilMetric(1, "weir_feed_unsaved", `list="feed"`)
	g.until("the history cannot be written", func() bool { return g.metric("weir_history_failed_records_total", `outcome="unwritten"`) >= 1 })
	if out, _ := g.ask(0, "lists"); !strings.Contains(out, "NOT SAVED: a restart would not find these entries") {
		t.Errorf("weir lists:\n%s", out)
	}
	time.Sleep(2 * time.Second)
	if n := d.count("the expiry of entries could not be recorded: journal"); n > 1 {
		t.Errorf("the log says %d times that expiry could not be recorded", n)
	}

	if err := os.Remove(rubbish); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"feed", "fades"} {
		g.untilMetric(0, "weir_feed_unsaved", fmt.Sprintf("list=%q", list))
	}
	g.block(0, refused...)
	held = slices.Concat(held, refused, many)
	g.block(0, many...)
	g.filters("with room again", held, []string{"10.1.0.2"})
	g.until("what has left its feed is recorded", func() bool {
		out, _ := g.ask(0, "entries")
		return strings.Contains(out, "10.4.0.1")
	})
	d.kill()
	d = g.begin()
	g.filters("restarted", held, []string{"10.1.0.2"})
	d.stop()
}

// On a read-only disk, weir starts with the saved state, follows its feeds, and
// rejects changes that would not survive a restart, until it can write.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	private(t)
	g := newGround(t)
	mount(t, g.state, 0)
	feed := g.file("feed", "10.0.0.1\n")
	g.configure("lists: {feed: {interval: 1s, jitter: 0s, sources: [{file: " + feed + "}]}}")
	d := g.begin()
	g.ask(0, "block", "10.1.0.1")
	g.ask(0, "block", "--ttl", "1s", "10.1.0.2")
	d.kill()
	mount(t, g.state, unix.MS_REMOUNT|unix.MS_RDONLY)
	if err := os.Rename(feed, feed+".away"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // until the entry has expired

	d = g.begin()
	d.read = 0
	d.wait("journal is read-only, entries can be neither added nor removed", g.journal(), "read-only file system")
	held := []string{"10.0.0.1", "10.1.0.1"}
	g.filters("read-only", held, []string{"10.1.0.2"})
	g.refuses([]string{g.journal(), "could not be opened for writing", "read-only file system"}, "block", "10.1.0.3")
	g.refuses([]string{"could not be opened for writing"}, "unblock", "10.1.0.1")
	g.filters("refused", held, []string{"10.1.0.3"})
	g.file("feed", "10.0.0.1\n10.0.0.2\n")
	g.untilDropped("10.0.0.2")
	d.wait("feed read, but it could not be saved", "read-only file system")
	g.untilMetric(1, "weir_feed_unsaved", `list="feed"`)

	mount(t, g.state, unix.MS_REMOUNT)
	g.ask(0, "block", "10.1.0.3")
	d.kill()
	d = g.begin()
	g.ask(0, "block", "10.1.0.4")
	g.untilMetric(0, "weir_feed_unsaved", `list="feed"`)
	g.filters("mended", append(held, "10.0.0.2", "10.1.0.3", "10.1.0.4"), []string{"10.1.0.2"})
	d.stop()
}

// However a crash or a disk has damaged the journal: intact records are active,
// and losses are logged.
func TestJournal(t *testing.T) {
	long.Seconds(t)
	three := []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}
	for _, c := range []struct {
		name        string
		spoil       func(journal []byte) []byte
		drop, pass  []string
		level, says string
	}{
		{"torn", func(b []byte) []byte { return b[:len(b)-5] }, three[:2], three[2:],
			"WARN", "journal ends with a torn record, as after a crash: cut off"},
		{"damaged", func(b []byte) []byte { b[len(b)/2+10] ^= 1; return b }, []string{three[0], three[2]}, three[1:2],
			"ERROR", "journal damaged: these bytes are lost, all records before and after them count"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			g.configure("")
			d := g.begin()
			for _, a := range three {
				g.ask(0, "block", a)
			}
			g.filters("whole", three, []string{"10.1.0.4"})
			d.kill()
			b := must.Read(t, g.journal())
			must.Write(t, g.journal(), string(c.spoil(b)))
			d = g.begin()
			d.read = 0
			d.wait(c.says, c.level, g.journal(), `"offset":`)
			g.filters(c.name, c.drop, c.pass)
			g.ask(0, "block", c.pass[0])
			d.kill()
			d = g.begin()
			g.filters("blocked again", three, []string{"10.1.0.4"})
			d.stop()
		})
	}
}

// A file that is not a journal prevents the start, and nothing is lost: neither
// the file nor the active filter.
func TestNoJournal(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.configure("")
	d := g.begin()
	g.ask(0, "block", "10.1.0.1")
	d.kill()
	const rubbish = "this is no journal at all, whatever it is"
	must.Write(t, g.journal(), rubbish)
	d = g.run("weir")
	d.start()
	if code := d.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	g.says("weir run", strings.Join(d.log(), "\n"), g.journal(), "not a journal of weir", "move it out of the way")
	if b, err := os.ReadFile(g.journal()); err != nil || string(b) != rubbish {
		t.Errorf("the file contains %q, %v", b, err)
	}
	g.filters("not started", []string{"10.1.0.1"}, []string{"10.1.0.2"})
}

// A weir that is killed while it rewrites its journal loses nothing.
func TestKilledWhileCompacting(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g := newGround(t)
	g.configure("")
	d := g.begin()
	many := make([]string, 20_000)
	for i := range many {
		many[i] = fmt.Sprintf("10.2.%d.%d", i/256, i%256)
	}
	held := []string{"10.1.0.1", many[0], many[len(many)-1]}
	g.ask(0, "block", "10.1.0.1")
	g.block(0, many...)
	g.block(0, many...)

	// The third time, more than a mebibyte is superseded, which causes a rewrite. It
	// waits for the lease of its file, until the kernel breaks it after 45 s.
	next := g.journal() + ".new"
	leased, err := os.Create(next)
	if err != nil {
		t.Fatal(err)
	}
	defer leased.Close()
	breaks := make(chan os.Signal, 1)
	signal.Notify(breaks, unix.SIGIO)
	defer signal.Stop(breaks)
	if _, err := unix.FcntlInt(leased.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(binaries, "weir"), "block", "--socket", g.socket, "-")
	command.Stdin = strings.NewReader(strings.Join(many, "\n"))
	var said strings.Builder
	command.Stdout = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-breaks:
	case <-time.After(wait.Patience):
		t.Fatal("the journal is not rewritten")
	}
	g.filters("compacting", held, []string{"10.1.0.2"})
	d.kill()
	if err := command.Wait(); err != nil || !strings.HasPrefix(said.String(), "queued ") {
		t.Errorf("the command returned before its changes were active: %v, %s", err, said.String())
	}
	// The journal alone is to have what was acknowledged before.
	if err := os.RemoveAll(filepath.Join(filepath.Dir(g.journal()), "queue")); err != nil {
		t.Fatal(err)
	}
	g.filters("killed", held, []string{"10.1.0.2"})

	// What it would have come to write.
	leased.Close()
	begun := must.Read(t, g.journal())
	must.Write(t, next, begun[:10_000])
	before, err := os.Stat(g.journal())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = g.begin()
		g.filters("restarted", held, []string{"10.1.0.2"})
		g.block(0, many...)
		d.kill()
	}
	if after, err := os.Stat(g.journal()); err != nil || after.Size() > before.Size()*2/3 {
		t.Errorf("the journal has %d bytes, after %d", after.Size(), before.Size())
	}
}

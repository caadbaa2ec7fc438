package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/tests/wait"
)

const (
	enterScreen = ansi.SetModeAltScreenSaveCursor
	leaveScreen = ansi.ResetModeAltScreenSaveCursor
	redraw      = "\x0c" // Ctrl-L
)

// runsView is set in the environment of a process that runs a view.
const runsView = "WEIR_TEST_TOP"

func TestMain(m *testing.M) {
	if os.Getenv(runsView) == "" {
		os.Exit(m.Run())
	}
	o := Options{Host: "gw", Interval: time.Hour, Read: new(source).read}
	if err := Run(context.Background(), os.Stdin, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// console is a pseudo-terminal with its output.
type console struct {
	t             *testing.T
	master, slave *os.File
	mu            sync.Mutex
	seen          strings.Builder
}

func newConsole(t *testing.T, columns, lines uint16) *console {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn() // not Fd, after which Close would wait for Read
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if bad := raw.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	}); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, master: master, slave: slave}
	c.resize(columns, lines)
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.seen.Write(b[:n])
			c.mu.Unlock()
		}
	}()
	t.Cleanup(func() { slave.Close(); master.Close() })
	return c
}

func (c *console) resize(columns, lines uint16) {
	c.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// await waits until a text was written, and discards everything before it.
func (c *console) await(text string) {
	c.t.Helper()
	c.until(text, func(seen string) bool {
		_, rest, found := strings.Cut(seen, text)
		if found {
			c.seen.Reset()
			c.seen.WriteString(rest)
		}
		return found
	})
}

// see waits until a text is on the screen. It forces a redraw, since otherwise
// only changes are written.
func (c *console) see(text string) {
	c.t.Helper()
	c.forget()
	c.until(text, func(seen string) bool {
		c.press(redraw)
		return strings.Contains(ansi.Strip(seen), text)
	})
}

func (c *console) until(text string, isThere func(seen string) bool) {
	c.t.Helper()
	for end := wait.Deadline(); ; time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		seen := c.seen.String()
		found := isThere(seen)
		c.mu.Unlock()
		if found {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("no %q in %q", text, seen)
		}
	}
}

// forget discards and returns the output so far.
func (c *console) forget() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen.String()
	c.seen.Reset()
	return seen
}

func (c *console) settings() unix.Termios {
	c.t.Helper()
	s, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatal(err)
	}
	return *s
}

// source is a daemon that may fail.
type source struct {
	mu   sync.Mutex
	err  error
	asks int
}

func (s *source) read(context.Context) (*api.Top, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks++
	if s.err != nil {
		return nil, s.err
	}
	t := sample()
	t.Time = t.Time.Add(time.Duration(s.asks) * time.Second)
	t.Packets = float64(min(s.asks, 3)) * 1e6
	return t, nil
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *source) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asks
}

// start runs a view; ended returns its error.
func start(t *testing.T, ctx context.Context, c *console, s *source, o Options) (ended func() error) {
	t.Helper()
	o.Host, o.Read = "gw", s.read
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- Run(ctx, c.slave, c.slave, o)
	}()
	t.Cleanup(func() { // before the terminal is closed
		select {
		case <-done:
		case <-time.After(wait.Patience):
		}
	})
	return func() error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(wait.Patience):
			t.Fatal("the view does not end")
			return nil
		}
	}
}

func TestViewOnATerminal(t *testing.T) {
	c, s := newConsole(t, 80, 24), &source{}
	before := c.settings()
	ended := start(t, t.Context(), c, s, Options{Interval: 10 * time.Millisecond, Colour: true})
	c.await(enterScreen)
	c.see("weir on gw")
	c.see("[src]")
	c.see("3.00 Mpps") // it keeps requesting
	c.press("d")
	c.see("[dst]")
	// Other keys, terminal replies and pasted text are ignored.
	c.press("\x1b[Z\x1bOP\x1b[1;5D\x1b[?2026;2$y\x1b[?1u\x1b[200~qs\x1b[201~")
	c.press("?")
	c.see("quit, as Ctrl-C does")
	c.press("?")
	c.see("[dst]")
	c.press("r")
	c.see("[reason]")

	c.press("p")
	c.see("PAUSED")
	asked := s.asked()
	time.Sleep(100 * time.Millisecond)
	if now := s.asked(); now > asked+1 { // the one in progress
		t.Errorf("paused, it asked %d times", now-asked)
	}
	c.press("p")
	c.see("every 10ms")

	s.fail(errors.New("weir is gone"))
	c.see("weir is gone")
	s.fail(nil)
	c.see("q quit") // the keys are back
	c.press("s")

	c.resize(40, 10)
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	c.see("2001:db8:85a…2e:3700:7334") // shortened

	if mode := c.settings().Lflag; mode&(unix.ICANON|unix.ECHO) != 0 {
		t.Errorf("meanwhile, the terminal's mode is %x", mode)
	}
	c.press("q")
	if err := ended(); err != nil {
		t.Error(err)
	}
	c.await(leaveScreen)
	if after := c.settings(); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
}

func TestKeysThatEndTheView(t *testing.T) {
	for _, key := range []string{"q", "\x03"} {
		c := newConsole(t, 80, 24)
		ended := start(t, t.Context(), c, &source{}, Options{Interval: time.Hour})
		c.see("weir on gw")
		c.press(key)
		if err := ended(); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// A new interval begins at once.
func TestIntervalIsChanged(t *testing.T) {
	c, s := newConsole(t, 80, 24), &source{}
	start(t, t.Context(), c, s, Options{Interval: 300 * time.Millisecond})
	c.press("+++++++")
	c.see("every 1m0s")
	asked := s.asked()
	time.Sleep(700 * time.Millisecond)   // two of the initial intervals
	if now := s.asked(); now > asked+1 { // the one in progress
		t.Errorf("it asked %d times", now-asked)
	}
	c.press("-------")
	c.see("every 250ms")
	c.see("3.00 Mpps") // stays, whatever the number of requests
}

func TestGoingOnLooksAtOnce(t *testing.T) {
	c := newConsole(t, 80, 24)
	start(t, t.Context(), c, &source{}, Options{Interval: time.Hour})
	c.press("pp")
	c.see("2.00 Mpps")
}

func TestColours(t *testing.T) {
	coloured := regexp.MustCompile(`\x1b\[([0-9;]*;)?3[0-7][;m]`)
	bold := regexp.MustCompile(`\x1b\[([0-9;]*;)?1[;m]`)
	for _, colour := range []bool{true, false} {
		c := newConsole(t, 80, 24)
		start(t, t.Context(), c, &source{}, Options{Interval: time.Hour, Colour: colour})
		c.see("interval")
		seen := c.forget()
		if coloured.MatchString(seen) != colour || !bold.MatchString(seen) {
			t.Errorf("colours %v: %q", colour, seen)
		}
	}
}

// A serial line has no size.
func TestTerminalWithoutASize(t *testing.T) {
	c := newConsole(t, 0, 0)
	start(t, t.Context(), c, &source{}, Options{Interval: time.Hour})
	c.see("weir on gw")
}

// run runs a command in its own session on the console; this test binary as an
// argument runs a view.
func (c *console) run(command ...string) {
	c.t.Helper()
	p := exec.Command(command[0], command[1:]...)
	p.Env = append(os.Environ(), runsView+"=1")
	p.Stdin, p.Stdout, p.Stderr = c.slave, c.slave, c.slave
	p.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Process.Kill(); p.Wait() })
}

// A shell has the terminal while the view is stopped.
func TestStopAndGoOn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newConsole(t, 80, 24)
	before := c.settings()
	c.run("sh", "-mc", `"$0"; echo stopped; read line; fg; echo ended`, self)
	c.see("weir on gw")
	c.press("\x1a")
	c.await(leaveScreen)
	c.await("stopped")
	if c.settings() != before {
		t.Error("stopped, the terminal is not as it was")
	}
	c.press("\n")
	c.await(enterScreen)
	c.see("weir on gw")
	c.press("q")
	c.await(leaveScreen)
	c.await("ended")
}

func TestStopWithoutShell(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newConsole(t, 80, 24)
	c.run(self)
	c.see("weir on gw")
	c.press("\x1a")
	time.Sleep(100 * time.Millisecond) // enough to stop
	c.see("weir on gw")
}

func TestViewEndsWithItsContext(t *testing.T) {
	c := newConsole(t, 80, 24)
	before := c.settings()
	ctx, cancel := context.WithCancel(t.Context())
	ended := start(t, ctx, c, &source{}, Options{Interval: time.Hour})
	c.await("weir on gw")
	cancel()
	if err := ended(); err != nil {
		t.Error(err)
	}
	c.await(leaveScreen)
	if c.settings() != before {
		t.Error("the terminal is not as it was")
	}
}

// A lost connection must not leave a busy process behind.
func TestViewEndsWithItsTerminal(t *testing.T) {
	c := newConsole(t, 80, 24)
	ended := start(t, t.Context(), c, &source{}, Options{Interval: time.Hour})
	c.see("interval")
	if err := c.master.Close(); err != nil {
		t.Fatal(err)
	}
	if ended() == nil {
		t.Error("no error")
	}
}

// Errors at the start are returned.
func TestViewThatCannotBegin(t *testing.T) {
	for _, c := range []struct {
		name, by string
		err      error
		want     string
	}{
		{"no weir", "", errors.New("the daemon is not running"), "the daemon is not running"},
		{"no such tracker", "src/16", nil, "no tracker by src/16"},
	} {
		console := newConsole(t, 80, 24)
		err := start(t, t.Context(), console, &source{err: c.err}, Options{By: c.by, Interval: time.Second})()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if console.seen.Len() != 0 {
			t.Errorf("%s: %q was written", c.name, console.seen.String())
		}
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := Run(t.Context(), file, file, Options{Interval: time.Second, Read: new(source).read}); err == nil {
		t.Error("no terminal: no error")
	}
}

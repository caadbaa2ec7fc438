// Package cli runs the weir binary as a user does.
package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

var program string // weir

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := binary.Build(dir, "weir", "weir"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = filepath.Join(dir, "weir")
	return m.Run()
}

// weir runs a command to its end, and fails the test unless it exits with code.
func weir(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, log bytes.Buffer
	// The demo of a fleet says after a minute what it waits for.
	ctx, stop := context.WithTimeout(context.Background(), wait.Patience+time.Minute) // also in a cleanup
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("weir %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(), log.String())
	}
	return out.String(), log.String()
}

// daemon is a running `weir run`.
type daemon struct {
	*exec.Cmd
	t    *testing.T
	log  *bufio.Scanner
	seen []string
}

// start starts `weir run` and waits until it filters.
func start(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := command(t, args...)
	d.begin()
	return d
}

// command is `weir run`, to be started.
func command(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{Cmd: exec.Command(program, append([]string{"run", "--json", "--interval", "1h"}, args...)...), t: t}
	pipe, err := d.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.log = bufio.NewScanner(pipe)
	t.Cleanup(func() {
		if d.Process != nil {
			d.Process.Kill()
		}
	})
	return d
}

func (d *daemon) begin() {
	d.t.Helper()
	if err := d.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.wait("filtering")
}

// event is a line of the log.
type event struct {
	Level, Msg, Error string
	Entries           int
}

// wait waits for an event whose message begins with a text.
func (d *daemon) wait(prefix string) event {
	d.t.Helper()
	timer := time.AfterFunc(wait.Patience, func() { d.Process.Kill() })
	defer timer.Stop()
	for d.log.Scan() {
		d.seen = append(d.seen, d.log.Text())
		var e event
		if err := json.Unmarshal(d.log.Bytes(), &e); err != nil {
			d.t.Fatalf("a line of the log is no JSON: %s", d.log.Text())
		}
		if strings.HasPrefix(e.Msg, prefix) {
			return e
		}
	}
	d.t.Fatalf("no event %q:\n%s", prefix, strings.Join(d.seen, "\n"))
	return event{}
}

// stop sends a signal and waits for the end.
func (d *daemon) stop(sig os.Signal) int {
	d.t.Helper()
	if err := d.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	timer := time.AfterFunc(wait.Patience, func() { d.Process.Kill() })
	defer timer.Stop()
	return d.end()
}

// end waits for the process to end and returns its exit code.
func (d *daemon) end() int {
	for d.log.Scan() {
		d.seen = append(d.seen, d.log.Text())
	}
	d.Wait()
	return d.ProcessState.ExitCode()
}

// attachment is an attachment in the output of `weir status --json`.
type attachment struct {
	Interface, Netns, XDP, Mode string
	Severed, Running, Monitor   bool
	ProgramID                   int `json:"program_id"`
	PID, Entries                int
	Reasons                     map[string]struct{ Packets, Bytes int }
	ByList                      []struct {
		List    string
		Packets int
	} `json:"by_list"`
}

func status(t *testing.T, pins string) []attachment {
	t.Helper()
	out, err := exec.Command(program, "status", "--json", "--pins", pins).Output()
	var s struct {
		Filtered    bool
		Attachments []attachment
	}
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	filtered := len(s.Attachments) > 0 && !slices.ContainsFunc(s.Attachments, func(a attachment) bool { return a.Severed })
	running := slices.ContainsFunc(s.Attachments, func(a attachment) bool { return a.Running })
	code := 4
	if filtered && running {
		code = 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() != code || err == nil && code != 0 || s.Filtered != filtered {
		t.Errorf("status: %v, want exit code %d\n%s", err, code, out)
	}
	return s.Attachments
}

// ground is a wire with a directory of pins for weir at its end B.
type ground struct {
	*lab.Lab
	t        *testing.T
	pins     string
	sender   *lab.Sender
	receiver *lab.Receiver
}

func newGround(t *testing.T) *ground {
	l := lab.New(t)
	g := &ground{Lab: l, t: t, pins: "/sys/fs/bpf/" + l.B.Netns}
	t.Cleanup(func() {
		weir(t, 0, "detach", "--all", "--pins", g.pins)
		os.RemoveAll(g.pins)
	})
	g.sender, g.receiver = l.A.Sender(t), l.B.Receiver(t)
	return g
}

func (g *ground) args(more ...string) []string {
	return append([]string{"--iface", g.B.Iface, "--netns", g.B.Netns, "--pins", g.pins}, more...)
}

// passes sends packets from an address and returns how many pass. An ARP frame,
// which always passes, marks the end.
func (g *ground) passes(from string, packets int) int {
	g.t.Helper()
	end := slices.Concat(g.B.MAC, g.A.MAC, []byte{8, 6}, []byte("the last of some packets"))
	src := netip.MustParseAddr(from)
	tuple := key.Tuple{Src: src, Dst: g.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 9}
	for range packets {
		frame := packet.Frame(tuple)
		copy(frame, g.B.MAC)
		copy(frame[6:], g.A.MAC)
		if err := g.sender.Send(frame); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := g.sender.Send(end); err != nil {
		g.t.Fatal(err)
	}
	came := 0
	for {
		frame, err := g.receiver.Receive(wait.Patience)
		if err != nil {
			g.t.Fatalf("wait for the last frame: %v", err)
		}
		if bytes.Equal(frame, end) {
			return came
		}
		if p, _ := packet.Parse(frame); p.Src == src {
			came++
		}
	}
}

func (g *ground) expect(from string, packets, want int) {
	g.t.Helper()
	if came := g.passes(from, packets); came != want {
		g.t.Errorf("of %d packets from %s, %d came through, want %d", packets, from, came, want)
	}
}

func TestRun(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	socket := filepath.Join(t.TempDir(), "weir.sock")
	d := start(t, g.args("--block", list, "--socket", socket)...)

	g.expect("10.0.0.1", 50, 0)
	g.expect("10.0.0.2", 50, 50)
	all := status(t, g.pins)
	if len(all) != 1 {
		t.Fatalf("status: %d attachments, want 1", len(all))
	}
	a := all[0]
	if a.Interface != g.B.Iface || a.Netns != g.B.Netns || a.XDP != "native" || a.Mode != "exact" ||
		a.Severed || !a.Running || a.PID != d.Process.Pid || a.ProgramID == 0 || a.Entries != 1 {
		t.Errorf("status: %+v", a)
	}
	if got := a.Reasons["blocked"].Packets; got != 50 {
		t.Errorf("status: %d packets blocked, want 50", got)
	}
	for _, l := range a.ByList {
		if want := map[string]int{"feed": 50}[l.List]; l.Packets != want {
			t.Errorf("status: list %s has matched %d packets, want %d", l.List, l.Packets, want)
		}
	}
	if len(a.ByList) == 0 || a.ByList[0].List != "feed" {
		t.Errorf("status: by list: %+v", a.ByList)
	}
	out, _ := weir(t, 3, "explain", "--exit-code", "--socket", socket, "10.0.0.1")
	if !strings.Contains(out, "10.0.0.1  "+list+":1,") {
		t.Errorf("explain does not name the line:\n%s", out)
	}

	// A list that cannot be read at a reload stays as it is.
	must.Write(t, list, "no address\n")
	d.Process.Signal(syscall.SIGHUP)
	if e := d.wait("feed failed"); e.Level != "ERROR" || !strings.Contains(e.Error, list+":1: ") {
		t.Errorf("reload: %+v", e)
	}
	g.expect("10.0.0.1", 10, 0)
	// One that its owner has emptied is empty.
	must.Write(t, list, "")
	d.Process.Signal(syscall.SIGHUP)
	if e := d.wait("the source is empty"); e.Level != "INFO" {
		t.Errorf("reload: %+v", e)
	}
	g.expect("10.0.0.1", 10, 10)

	must.Write(t, list, "10.0.0.2\n10.0.0.3\n")
	d.Process.Signal(syscall.SIGHUP)
	if e := d.wait("reloaded"); e.Entries != 2 {
		t.Errorf("reload: %+v", e)
	}
	g.expect("10.0.0.1", 10, 10)
	g.expect("10.0.0.2", 10, 0)
	if a := status(t, g.pins)[0]; a.Entries != 2 || a.Reasons["blocked"].Packets != 70 {
		t.Errorf("status after the reload: %+v", a)
	}

	if code := d.stop(os.Interrupt); code != 0 {
		t.Errorf("stopped: exit code %d\n%s", code, strings.Join(d.seen, "\n"))
	}
	g.expect("10.0.0.2", 10, 10)
	if all := status(t, g.pins); len(all) != 0 {
		t.Errorf("after the stop, weir is attached: %+v", all)
	}
	if left, _ := os.ReadDir(g.pins); len(left) != 0 {
		t.Errorf("after the stop, there are pins: %v", left)
	}
}

func TestKilledAndAdopted(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	d := start(t, g.args("--block", list)...)
	g.expect("10.0.0.1", 10, 0)
	d.Process.Kill()
	d.Wait()
	g.expect("10.0.0.1", 10, 0)
	if a := status(t, g.pins)[0]; a.Running || a.Severed {
		t.Errorf("status after the kill: %+v", a)
	}

	// Another list comes first now: its counter begins at zero.
	other := filepath.Join(t.TempDir(), "other.txt")
	must.Write(t, other, "10.0.0.9\n")
	d = start(t, g.args("--block", other, "--block", list)...)
	g.expect("10.0.0.1", 10, 0)
	g.expect("10.0.0.9", 5, 0)
	a := status(t, g.pins)[0]
	if a.Reasons["blocked"].Packets != 35 || !a.Running {
		t.Errorf("status after the adoption: %+v", a)
	}
	got := map[string]int{}
	for _, l := range a.ByList {
		got[l.List] = l.Packets
	}
	if got["other"] != 5 || got["feed"] != 10 {
		t.Errorf("by list after the adoption: %v", got)
	}

	// Detached by hand, it ends by itself.
	weir(t, 0, "detach", "--pins", g.pins)
	d.wait("detached by somebody else")
	d.Wait()
	if code := d.ProcessState.ExitCode(); code != 0 { // or a service would start it again
		t.Errorf("with nothing left to filter: exit code %d, want 0", code)
	}
}

func TestTakenOver(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	first := start(t, g.args("--block", list)...)
	// Not by accident, though.
	_, log := weir(t, 1, append([]string{"run"}, g.args("--block", list)...)...)
	if !strings.Contains(log, fmt.Sprintf("process %d", first.Process.Pid)) || !strings.Contains(log, "--takeover") {
		t.Errorf("beside a running daemon: %s", log)
	}
	second := start(t, g.args("--block", list, "--takeover")...)
	first.wait("another daemon has taken over")
	first.Wait()
	g.expect("10.0.0.1", 10, 0)
	if code := second.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("stopped: exit code %d", code)
	}
	g.expect("10.0.0.1", 10, 10)
}

// A weir that is stopped before it has noticed a takeover leaves the new
// program alone.
func TestStoppedWhileTakenOver(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	first := start(t, g.args("--block", list)...)
	first.Process.Signal(syscall.SIGSTOP)
	second := start(t, g.args("--block", list, "--takeover")...)
	first.Process.Signal(syscall.SIGTERM)
	first.Process.Signal(syscall.SIGCONT)
	first.Wait()
	g.expect("10.0.0.1", 10, 0)
	if code := second.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("stopped: exit code %d", code)
	}
}

// terminal is a pseudo-terminal.
func terminal(t *testing.T) (slave, master *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave, master
}

// An operator whose session is lost may be locked out, so the filter ends with
// the terminal. A SIGHUP that somebody sends reloads.
func TestTerminalLost(t *testing.T) {
	for _, c := range []struct {
		name       string
		use        func(d *exec.Cmd, terminal *os.File)
		descriptor int
		keep       bool
	}{
		{"input", func(d *exec.Cmd, terminal *os.File) { d.Stdin = terminal }, 0, false},
		{"output", func(d *exec.Cmd, terminal *os.File) { d.Stdout = terminal }, 1, false},
		{"kept", func(d *exec.Cmd, terminal *os.File) { d.Stdin = terminal }, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGround(t)
			list := filepath.Join(t.TempDir(), "feed.txt")
			must.Write(t, list, "10.0.0.1\n")
			d := command(t, g.args("--block", list, fmt.Sprintf("--keep=%t", c.keep))...)
			slave, master := terminal(t)
			c.use(d.Cmd, slave)
			d.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: c.descriptor}
			d.begin()
			d.Process.Signal(syscall.SIGHUP) // from somebody: the terminal is there
			d.wait("reloaded")
			timer := time.AfterFunc(wait.Patience, func() { d.Process.Kill() })
			defer timer.Stop()
			slave.Close()
			master.Close() // the kernel sends SIGHUP
			if code := d.end(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if log := strings.Join(d.seen, "\n"); !strings.Contains(log, "the terminal is gone") {
				t.Errorf("not logged:\n%s", log)
			}
			want := 0
			if c.keep {
				want = 1
			}
			if all := status(t, g.pins); len(all) != want {
				t.Errorf("attached: %+v, want %d", all, want)
			}
		})
	}
}

// A weir that is stopped while it reads lists has changed nothing: the previous
// program keeps filtering.
func TestStoppedWhileLoading(t *testing.T) {
	g := newGround(t)
	dir := t.TempDir()
	list, slow := filepath.Join(dir, "feed.txt"), filepath.Join(dir, "slow.txt")
	must.Write(t, list, "10.0.0.1\n")
	start(t, g.args("--block", list, "--keep")...).stop(os.Interrupt)
	before := status(t, g.pins)[0]

	if err := unix.Mkfifo(slow, 0o600); err != nil {
		t.Fatal(err)
	}
	d := command(t, g.args("--block", slow)...)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	feed, err := os.OpenFile(slow, os.O_WRONLY, 0) // when it is read
	if err != nil {
		t.Fatal(err)
	}
	d.Process.Signal(os.Interrupt)
	time.Sleep(200 * time.Millisecond)                                                          // for the signal to be noted
	if _, err := feed.WriteString("10.0.0.9\n"); err != nil && !errors.Is(err, syscall.EPIPE) { // it may have ended
		t.Fatal(err)
	}
	feed.Close()
	if code := d.end(); code != 1 || !strings.Contains(strings.Join(d.seen, "\n"), "nothing has changed") {
		t.Errorf("exit code %d, %q", code, d.seen)
	}
	if all := status(t, g.pins); len(all) != 1 || all[0].ProgramID != before.ProgramID {
		t.Errorf("attached: %+v, want %+v", all, before)
	}
	g.expect("10.0.0.1", 10, 0)
}

// A feed that is empty at a restart is a download that failed.
func TestEmptyFeed(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	other := filepath.Join(t.TempDir(), "other.txt")
	must.Write(t, list, "")
	run := append([]string{"run"}, g.args("--block", list)...)
	if _, log := weir(t, 1, run...); !strings.Contains(log, list+": no entries") {
		t.Errorf("cold start: %s", log)
	}
	if code := start(t, g.args("--block", list, "--monitor")...).stop(os.Interrupt); code != 0 {
		t.Errorf("monitor: exit code %d", code)
	}
	must.Write(t, list, "10.0.0.1\n")
	start(t, g.args("--block", list, "--keep")...).stop(os.Interrupt)
	must.Write(t, list, "")
	must.Write(t, other, "10.0.0.2\n")
	if _, log := weir(t, 1, append(run, "--block", other)...); !strings.Contains(log, list+": no entries") {
		t.Errorf("restart: %s", log)
	}
	g.expect("10.0.0.1", 10, 0)
	if code := start(t, g.args("--block", other, "--allow", list)...).stop(os.Interrupt); code != 0 {
		t.Errorf("a list to allow that is yet to be filled: exit code %d", code)
	}
}

func TestWide(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "0.0.0.0/1\n")
	if _, log := weir(t, 1, append([]string{"run"}, g.args("--block", list)...)...); strings.Count(log, "list feed: ") != 1 || !strings.Contains(log, "it would cover 50 % of IPv4") {
		t.Errorf("refused: %s", log)
	}
	for flag, came := range map[string]int{"--wide": 0, "--monitor": 10} {
		d := start(t, g.args("--block", list, flag)...)
		g.expect("10.0.0.1", 10, came)
		d.stop(os.Interrupt)
	}
}

func TestEvadableWarning(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	for _, c := range []struct {
		entry, malformed string
		want             bool
	}{
		{"tcp [2001:db8::1]:* > [::/0]:25", "pass", true},
		{"tcp [2001:db8::1]:* > [::/0]:25", "drop", false},
		{"tcp 192.0.2.1:* > *:25", "pass", false},
		{"2001:db8::1", "pass", false},
	} {
		must.Write(t, list, c.entry+"\n")
		d := start(t, g.args("--block", list, "--malformed", c.malformed)...)
		d.stop(os.Interrupt)
		if got := strings.Contains(strings.Join(d.seen, "\n"), "malformed: drop closes that"); got != c.want {
			t.Errorf("%s, %s: warned %t\n%s", c.entry, c.malformed, got, strings.Join(d.seen, "\n"))
		}
	}
}

// Explain reads the lists as the running weir does.
func TestExplainMaxBad(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\nwhat\n")
	socket := filepath.Join(t.TempDir(), "weir.sock")
	start(t, g.args("--block", list, "--max-bad", "60%", "--socket", socket)...)
	weir(t, 3, "explain", "--exit-code", "--socket", socket, "10.0.0.1")
}

func TestInterfaceComesBack(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	d := start(t, g.args("--block", list)...)
	g.deleteWire()
	d.wait("the interface is gone")
	g.Wire(t)
	d.wait("the interface is there, filtering")
	g.sender, g.receiver = g.A.Sender(t), g.B.Receiver(t)
	g.expect("10.0.0.1", 10, 0)
	g.expect("10.0.0.2", 10, 10)
	if code := d.stop(os.Interrupt); code != 0 {
		t.Errorf("stopped: exit code %d", code)
	}
}

func (g *ground) deleteWire() {
	g.t.Helper()
	var err error
	g.A.In(g.t, func() {
		var wire netlink.Link
		if wire, err = netlink.LinkByName(g.A.Iface); err == nil {
			err = netlink.LinkDel(wire)
		}
	})
	if err != nil {
		g.t.Fatalf("delete the wire: %v", err)
	}
}

func TestSevered(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	d := start(t, g.args("--block", list)...)
	d.Process.Kill()
	d.Wait()
	g.deleteWire()
	if a := status(t, g.pins); len(a) != 1 || !a[0].Severed || a[0].Running {
		t.Errorf("status: %+v", a)
	}
	if out, _ := weir(t, 4, "status", "--pins", g.pins); !strings.Contains(out, "DETACHED") || !strings.Contains(out, "weir detach") || strings.Contains(out, "the program continues") {
		t.Errorf("status: %s", out)
	}
	weir(t, 0, append([]string{"detach"}, g.args()...)...)
	if a := status(t, g.pins); len(a) != 0 {
		t.Errorf("status after detach: %+v", a)
	}
}

func TestApproximateGeneric(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.0/29\n10.0.0.8\n")
	allow := filepath.Join(t.TempDir(), "ours.txt")
	must.Write(t, allow, "10.0.0.7\n")
	d := start(t, g.args("--block", list, "--allow", allow, "--mode", "approx", "--bits-per-entry", "20",
		"--xdp", "generic", "--failsafe", "10.0.0.8/31", "--malformed", "drop")...)
	g.expect("10.0.0.1", 10, 0)
	g.expect("10.0.0.7", 10, 10)
	g.expect("10.0.0.8", 10, 10)
	a := status(t, g.pins)[0]
	if a.XDP != "generic" || a.Mode != "approx" || a.Reasons["blocked"].Packets != 10 ||
		a.Reasons["allowed"].Packets != 10 || a.Reasons["failsafe"].Packets != 10 {
		t.Errorf("status: %+v", a)
	}
	if len(a.ByList) == 0 || a.ByList[0].List != "" || a.ByList[0].Packets != 10 {
		t.Errorf("by list: %+v", a.ByList)
	}
	out, _ := weir(t, 0, "status", "--pins", g.pins)
	if !strings.Contains(out, "10 packets, ") || strings.Contains(out, "0 packets, 0 B; 1 entry") {
		t.Errorf("status shows counters that are not counted:\n%s", out)
	}
	// Under what was dropped stands no reason to pass, and the other way round.
	if rows := regexp.MustCompile(`(?m)^  dropped .*\n    blocked .*\n  passed .*\n(    (?:allowed|failsafe|arp|nd) .*\n){2,}`); !rows.MatchString(out) {
		t.Errorf("status mixes reasons:\n%s", out)
	}
	if code := d.stop(os.Interrupt); code != 0 {
		t.Errorf("stopped: exit code %d", code)
	}
}

func TestKeep(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	d := start(t, g.args("--block", list, "--keep", "--monitor")...)
	g.expect("10.0.0.1", 10, 10)
	if code := d.stop(os.Interrupt); code != 0 {
		t.Errorf("stopped: exit code %d", code)
	}
	if a := status(t, g.pins); len(a) != 1 || !a[0].Monitor || a[0].Running {
		t.Errorf("status of the kept program: %+v", a)
	}
	out, _ := weir(t, 0, append([]string{"detach"}, g.args()...)...)
	if !strings.Contains(out, g.B.Iface) {
		t.Errorf("detach: %s", out)
	}
	_, log := weir(t, 1, append([]string{"detach"}, g.args()...)...)
	if !strings.Contains(log, "not attached") {
		t.Errorf("detach again: %s", log)
	}
}

func TestRefusals(t *testing.T) {
	g := newGround(t)
	list := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, list, "10.0.0.1\n")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no such interface", []string{"--iface", "nosuch0", "--netns", g.B.Netns, "--pins", g.pins, "--block", list}, "no such interface"},
		{"no such namespace", []string{"--iface", "eth0", "--netns", "nosuch", "--pins", g.pins, "--block", list}, "no such network namespace"},
		{"no such list", g.args("--block", list+"x"), list + "x"},
		{"one of two interfaces", []string{"--iface", g.B.Iface + ",nosuch0", "--netns", g.B.Netns, "--pins", g.pins, "--block", list}, "no such interface"},
	} {
		_, log := weir(t, 1, append([]string{"run"}, c.args...)...)
		if !strings.Contains(log, "weir: ") || !strings.Contains(log, c.want) || strings.Contains(log, "Usage") {
			t.Errorf("%s: %s", c.name, log)
		}
		if all := status(t, g.pins); len(all) != 0 {
			t.Errorf("%s: weir is attached: %+v", c.name, all)
		}
	}
}

// A list is read from standard input, whatever that is.
func TestStandardInput(t *testing.T) {
	const text = "192.0.2.1\n192.0.2.2\n"
	path := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, path, text)
	regular, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, far := os.NewFile(uintptr(ends[0]), "socket"), os.NewFile(uintptr(ends[1]), "far end")
	if _, err := far.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]io.Reader{"file": regular, "socket": socket, "pipe": strings.NewReader(text)} {
		c := exec.Command(program, "check", "--iface", "eth0", "--anti-lockout=false", "--block", "-")
		c.Stdin = in
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "entries: 2") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

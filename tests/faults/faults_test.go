// Package faults breaks weir's environment, one thing at a time, while it
// filters by a configuration: feeds, the disk, the kernel's memory, its
// verifier, privileges, the interface, the socket, the configuration itself.
// weir keeps filtering with the active state, reports what is wrong and what to
// do, and recovers when the fault is over.
package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

var binaries string // directory of built binaries, accessible to every user

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	var err error
	if binaries, err = os.MkdirTemp("", "weir-faults-"); err == nil {
		defer os.RemoveAll(binaries)
		err = os.Chmod(binaries, 0o755)
	}
	if err == nil {
		err = binary.Build(binaries, "weir", "weir")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	lab.Parallel()
	return m.Run()
}

// ground is a wire, and a directory with all that weir has, for weir at the
// wire's end B.
type ground struct {
	*lab.Lab
	t                          *testing.T
	dir, config, state, socket string
	pins, interfaces           string
	probe                      *lab.Probe
}

func newGround(t *testing.T) *ground {
	t.Helper()
	l := lab.New(t)
	dir, err := os.MkdirTemp("", "weir-") // t.TempDir() may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{
		Lab: l, t: t, dir: dir, config: filepath.Join(dir, "weir.yaml"), state: filepath.Join(dir, "state"),
		socket: filepath.Join(dir, "weir.sock"), pins: "/sys/fs/bpf/" + l.B.Netns,
		interfaces: fmt.Sprintf("[{name: %s, netns: %s}]", l.B.Iface, l.B.Netns),
	}
	t.Cleanup(func() {
		g.weir(0, "detach", "--all", "--pins", g.pins)
		if err := errors.Join(os.RemoveAll(g.pins), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	g.probe = lab.NewProbe(t, l)
	return g
}

// yaml is a configuration: where weir is, and more.
func (g *ground) yaml(more string) string {
	return fmt.Sprintf("interfaces: %s\nstate_dir: %s\npins: %s\napi: {socket: %s}\n%s\n", g.interfaces, g.state, g.pins, g.socket, more)
}

// configure writes a configuration.
func (g *ground) configure(more string) { g.t.Helper(); must.Write(g.t, g.config, g.yaml(more)) }

// file writes a file beside the configuration and returns its path. It is
// renamed into place, as feeds require.
func (g *ground) file(name, text string) string {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	must.Write(g.t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// anyCode is for a command that may succeed or fail.
const anyCode = -1

// weir runs a command to its end, and fails the test unless it exits with code.
func (g *ground) weir(code int, args ...string) (stdout, stderr string) {
	g.t.Helper()
	return g.command(nil, code, args...)
}

// ask runs a weir command that uses the socket.
func (g *ground) ask(code int, args ...string) (stdout, stderr string) {
	g.t.Helper()
	return g.weir(code, append(args, "--socket", g.socket)...)
}

func (g *ground) command(stdin io.Reader, code int, args ...string) (stdout, stderr string) {
	g.t.Helper()
	var out, log bytes.Buffer
	ctx, stop := context.WithTimeout(context.Background(), wait.Patience) // also in a cleanup
	defer stop()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "weir"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code && code != anyCode {
		g.t.Fatalf("weir %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(), log.String())
	}
	return out.String(), log.String()
}

// refuses fails unless a command fails and says all of these.
func (g *ground) refuses(says []string, args ...string) {
	g.t.Helper()
	_, log := g.ask(1, args...)
	g.says("weir "+args[0], log, says...)
}

func (g *ground) says(who, text string, says ...string) {
	g.t.Helper()
	g.t.Logf("%s: %s", who, text)
	for _, s := range says {
		if !strings.Contains(text, s) {
			g.t.Errorf("%s does not say %q", who, s)
		}
	}
}

// daemon is a running `weir run -c`.
type daemon struct {
	*exec.Cmd
	t *testing.T

	mu    sync.Mutex
	lines []string // of its log
	ended chan struct{}
	read  int // lines that wait has seen
}

// run prepares to run a binary with the configuration.
func (g *ground) run(binary string) *daemon {
	cmd := exec.Command(filepath.Join(binaries, binary), "run", "--config", g.config, "--json", "--interval", "1h")
	return &daemon{Cmd: cmd, t: g.t, ended: make(chan struct{})}
}

// begin starts weir and waits until it filters, and answers.
func (g *ground) begin() *daemon {
	g.t.Helper()
	d := g.run("weir")
	d.start()
	d.filtering()
	g.answers()
	return d
}

func (d *daemon) filtering() {
	d.t.Helper()
	d.wait(`"msg":"filtering"`)
}

// answers waits until weir answers on its socket.
func (g *ground) answers() {
	g.t.Helper()
	g.until("weir answers on its socket", func() bool { _, err := net.Dial("unix", g.socket); return err == nil })
}

func (d *daemon) start() {
	d.t.Helper()
	pipe, err := d.StderrPipe()
	if err == nil {
		err = d.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(d.kill)
	go func() {
		defer close(d.ended)
		lines := bufio.NewScanner(pipe)
		lines.Buffer(nil, 1<<20) // the verifier's log is long
		for lines.Scan() {
			d.mu.Lock()
			d.lines = append(d.lines, lines.Text())
			d.mu.Unlock()
		}
	}()
}

// log returns weir's log so far.
func (d *daemon) log() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// wait waits for a line of the log that says all of these, after those that
// were waited for before.
func (d *daemon) wait(says ...string) {
	d.t.Helper()
	for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ended := false
		select {
		case <-d.ended:
			ended = true
		default:
		}
		lines := d.log()
		for ; d.read < len(lines); d.read++ {
			if line := lines[d.read]; !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(line, s) }) {
				d.read++
				d.t.Log(line)
				return
			}
		}
		if ended {
			break
		}
	}
	d.t.Fatalf("no line of the log says %q:\n%s", says, strings.Join(d.log(), "\n"))
}

// count is how many lines of the log say something.
func (d *daemon) count(says string) (n int) {
	for _, line := range d.log() {
		if strings.Contains(line, says) {
			n++
		}
	}
	return n
}

func (d *daemon) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) kill() {
	d.Process.Kill()
	<-d.ended
	d.Wait()
}

// end waits for the process to end and returns its exit code.
func (d *daemon) end() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(wait.Patience):
		d.t.Errorf("it does not end:\n%s", strings.Join(d.log(), "\n"))
		d.kill()
	}
	d.Wait()
	return d.ProcessState.ExitCode()
}

// stop has weir stop in good order.
func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.end(); code != 0 {
		d.t.Errorf("stopped: exit code %d\n%s", code, strings.Join(d.log(), "\n"))
	}
}

// came sends a packet from each address and returns the addresses whose packets
// passed.
func (g *ground) came(from []string) (came []string) {
	g.t.Helper()
	frames := make([][]byte, len(from))
	for i, a := range from {
		frames[i] = packet.Frame(key.Tuple{
			Src: netip.MustParseAddr(a), Dst: g.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 9,
		})
	}
	for i, f := range g.probe.Pass(g.t, frames...) {
		if f != nil {
			came = append(came, from[i])
		}
	}
	return came
}

// filters fails unless packets from some addresses are dropped, and from others
// pass.
func (g *ground) filters(when string, drop, pass []string) {
	g.t.Helper()
	came := g.came(slices.Concat(drop, pass))
	for _, a := range drop {
		if slices.Contains(came, a) {
			g.t.Errorf("%s: a packet from %s came through", when, a)
		}
	}
	for _, a := range pass {
		if !slices.Contains(came, a) {
			g.t.Errorf("%s: the packet from %s was dropped", when, a)
		}
	}
}

// untilDropped waits until packets from an address are dropped.
func (g *ground) untilDropped(address string) {
	g.t.Helper()
	g.until(address+" is dropped", func() bool { return len(g.came([]string{address})) == 0 })
}

// until waits for something.
func (g *ground) until(what string, is func() bool) {
	g.t.Helper()
	wait.For(g.t, what, is)
}

// list returns the entry of a list in `weir lists`.
func (g *ground) list(name string) api.List {
	g.t.Helper()
	out, _ := g.ask(0, "lists", "--json")
	var all api.Lists
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		g.t.Fatalf("%v:\n%s", err, out)
	}
	i := slices.IndexFunc(all.Lists, func(l api.List) bool { return l.Name == name })
	if i < 0 {
		g.t.Fatalf("no list %s:\n%s", name, out)
	}
	return all.Lists[i]
}

// metrics returns the metrics that weir serves on its socket, by name and
// labels.
func (g *ground) metrics() map[string]float64 {
	g.t.Helper()
	client := http.Client{Timeout: wait.Patience, Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", g.socket) },
		DisableKeepAlives: true,
	}}
	r, err := client.Get("http://weir/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ') // labels may have some
		if space < 0 || !strings.HasPrefix(line, "weir_") {
			continue
		}
		if all[line[:space]], err = strconv.ParseFloat(line[space+1:], 64); err != nil {
			g.t.Fatalf("%s: %v", line, err)
		}
	}
	return all
}

// metric finds the one metric of a name that has certain labels; -1 says that
// there is none.
func (g *ground) metric(name string, labels ...string) float64 {
	g.t.Helper()
	for at, value := range g.metrics() {
		if !regexp.MustCompile("^" + name + `(\{|$)`).MatchString(at) {
			continue
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(at, l) }) {
			return value
		}
	}
	return -1
}

// untilMetric waits until a metric has a value; -1 is for none of its name.
func (g *ground) untilMetric(want float64, name string, labels ...string) {
	g.t.Helper()
	g.until(fmt.Sprint(name, labels, " is ", want), func() bool { return g.metric(name, labels...) == want })
}

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A record says how long a test took, or a package as a whole, whose Test is "".
type record struct {
	Package string // its directory, from the root of the module
	Test    string
	Wall    float64 // seconds, without those in which a parallel test waits for its turn
	CPU     float64 // seconds, with the processes that it started
}

// execute runs a test binary for go test -exec, in the directory of its package.
func execute(args []string) error {
	var o options
	args, err := o.parse(args)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("exec: want a test binary")
	}
	chosen, err := o.choose(args[1:])
	if err != nil {
		return err
	}
	if o.binaries != "" {
		if err := keep(args[0], keptBinary(o.binaries, directory())); err != nil {
			return err
		}
	}
	cmd := exec.Command(args[0], chosen...)
	cmd.Stdin = os.Stdin
	// go test ends a test that takes too long by a signal to its process, which is this one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout // in its order
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	w := watch{pkg: directory(), pid: cmd.Process.Pid, running: make(map[string]*record)}
	copyErr := w.copy(os.Stdout, out)
	err = cmd.Wait()
	w.done = append(w.done, record{w.pkg, "", time.Since(began).Seconds(),
		(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()})
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = exitStatus(max(1, failed.ExitCode()))
	}
	if o.times != "" {
		copyErr = errors.Join(copyErr, w.save(o.times))
	}
	return errors.Join(err, copyErr)
}

// directory returns the working directory, the package's, relative to the directory of go.mod.
func directory() string {
	dir, err := os.Getwd()
	if err != nil {
		return "?"
	}
	from := dir
	for root := dir; root != "/"; root = filepath.Dir(root) { // up to the last: tests/ has modules
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			rel, _ := filepath.Rel(root, dir)
			from = "./" + rel
		}
	}
	return from
}

// A watch follows the output of a test binary, to see which tests run.
type watch struct {
	pkg     string
	pid     int
	running map[string]*record // top-level tests
	done    []record
	cpu     float64   // until it was read
	read    time.Time // when
}

func (w *watch) copy(out io.Writer, in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		text, err := lines.ReadString('\n')
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		w.see(text)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// see adds the CPU's time since the last event to the tests that run: parallel ones share
// it in equal parts.
func (w *watch) see(text string) {
	i := strings.LastIndexByte(text, 0x16) // before a line of the testing package
	if i < 0 {
		return
	}
	words := strings.Fields(text[i+1:])
	if len(words) < 3 || strings.Contains(words[2], "/") {
		return
	}
	name := words[2]
	switch words[0] + " " + words[1] {
	case "=== RUN", "=== CONT":
		w.advance()
		if w.running[name] == nil {
			w.running[name] = &record{Package: w.pkg, Test: name}
		}
		return
	case "=== PAUSE", "--- PASS:", "--- FAIL:", "--- SKIP:":
	default:
		return
	}
	w.advance()
	if r := w.running[name]; r != nil {
		if len(words) > 3 { // as in (1.25s)
			r.Wall, _ = strconv.ParseFloat(strings.Trim(words[3], "(s)"), 64)
		}
		w.done = append(w.done, *r)
		delete(w.running, name)
	}
}

func (w *watch) advance() {
	// Reading takes a millisecond, and a package has thousands of short tests.
	if time.Since(w.read) < 30*time.Millisecond {
		return
	}
	w.read = time.Now()
	cpu := cpuOf(w.pid)
	used := max(0, cpu-w.cpu)
	for _, r := range w.running {
		r.CPU += used / float64(len(w.running))
	}
	w.cpu = cpu
}

func (w *watch) save(file string) error {
	var text []byte
	for _, r := range w.done {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text) // at once: other packages append, too
	return errors.Join(err, f.Close())
}

// ticks is the kernel's USER_HZ, which is 100 on all architectures that Go knows.
const ticks = 100

// cpuOf returns the CPU time in seconds of a process and all below it, also of those that
// have ended and were waited for.
func cpuOf(pid int) float64 {
	type process struct {
		parent int
		ticks  float64
	}
	processes := make(map[int]process)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		// pid (comm) state ppid … utime stime cutime cstime, the 14th and those behind it
		_, after, _ := strings.Cut(string(text), " (")
		fields := strings.Fields(after[strings.LastIndexByte(after, ')')+1:])
		if len(fields) < 15 {
			continue
		}
		p := process{}
		p.parent, _ = strconv.Atoi(fields[1])
		for _, f := range fields[11:15] {
			n, _ := strconv.ParseFloat(f, 64)
			p.ticks += n
		}
		processes[id] = p
	}
	sum := 0.
	for id, p := range processes {
		for above := id; above > 1; above = processes[above].parent {
			if above == pid {
				sum += p.ticks
				break
			}
		}
	}
	return sum / ticks
}

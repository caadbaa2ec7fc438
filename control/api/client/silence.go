package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
)

// Silence is how long a daemon may show no sign of life before a request to it ends: neither an
// answer, nor a line of a stream, nor its status. It is a variable for tests.
var Silence = 30 * time.Second

// watch ends a request to a daemon that shows no sign of life.
type watch struct {
	client   *Client
	question bool // it changes nothing
	cancel   context.CancelCauseFunc
	last     atomic.Pointer[time.Time] // sign of life
	answered context.CancelFunc        // ends waiting
	waiting  context.Context           // until the answer begins
	settled  chan struct{}             // closed when nothing more is reported
}

// watch begins to watch a request, whose context is the one returned.
func (c *Client) watch(ctx context.Context, method string) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{client: c, question: method == http.MethodGet, cancel: cancel, settled: make(chan struct{})}
	w.waiting, w.answered = context.WithCancel(ctx)
	w.alive()
	go w.run(ctx)
	return ctx, w
}

func (w *watch) alive() { w.last.Store(new(time.Now())) }

// begun says that the answer has begun. Reports of waiting end before it returns.
func (w *watch) begun() {
	w.alive()
	w.answered()
	<-w.settled
}

func (w *watch) end() {
	if w.cancel != nil {
		w.cancel(nil)
	}
}

// run asks for the status whenever there was no sign of life for some time.
func (w *watch) run(ctx context.Context) {
	slow := w.client.slow
	settle := func() {
		if slow != nil {
			slow = nil
			close(w.settled)
		}
	}
	if slow == nil {
		close(w.settled)
	}
	defer settle()
	pause := w.client.pause()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	waiting := w.waiting.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case <-waiting:
			waiting = nil
			settle()
			continue
		case <-timer.C:
		}
		if left := pause - time.Since(*w.last.Load()); left > 0 {
			timer.Reset(left)
			continue
		}
		probed := ctx
		if slow != nil {
			probed = w.waiting
		}
		s, err := w.client.probe(probed, min(patience, Silence-time.Since(*w.last.Load())))
		if slow != nil && w.waiting.Err() == nil {
			slow(w.waiting, s, err)
		}
		settle()
		switch silent := time.Since(*w.last.Load()); {
		case ctx.Err() != nil:
			return
		case !errors.Is(err, ErrUnanswered) && !errors.Is(err, context.Canceled):
			w.alive() // also where it refuses: or it has ended, which the request learns by itself
		case silent >= Silence, w.question && w.client.isStopped():
			w.cancel(w.client.Silent(silent))
			return
		}
		timer.Reset(max(0, min(pause, Silence-time.Since(*w.last.Load()))))
	}
}

// pause is the time without a sign of life after which one is asked for.
func (c *Client) pause() time.Duration {
	if c.patience > 0 {
		return c.patience
	}
	return patience
}

// probe asks for the status, which is answered whatever else goes on.
func (c *Client) probe(ctx context.Context, within time.Duration) (*api.Status, error) {
	soon, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	path := api.StatusPath
	if c.hub {
		path = api.FleetPath
	}
	plain := &Client{path: c.path, base: c.base, http: http.Client{Transport: c.http.Transport}, hub: c.hub, unwatched: true}
	s, err := Ask[api.Status](soon, plain, http.MethodGet, path, nil)
	if err != nil && ctx.Err() == nil && soon.Err() != nil {
		err = ErrUnanswered
	}
	return s, err
}

// watchedBody is the body of an answer; what is read of it is a sign of life.
type watchedBody struct {
	io.ReadCloser
	ctx   context.Context
	watch *watch
}

func (b *watchedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	switch {
	case n > 0:
		b.watch.alive() // also of no watch
	case err != nil && err != io.EOF && b.ctx.Err() != nil:
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.watch.end()
	return b.ReadCloser.Close()
}

// Silent is the error for no answer for a time.
func (c *Client) Silent(within time.Duration) error {
	within = max(within.Round(time.Second), time.Millisecond)
	if c.hub {
		return c.noAnswer(fmt.Errorf("the hub at %s does not answer within %v", c.path, within))
	}
	err := fmt.Errorf("%w within %v, at %s", ErrUnanswered, within, c.path)
	if pid := c.Process(); c.isStopped() {
		err = fmt.Errorf("%w: process %d is stopped by a signal", err, pid)
	}
	return c.noAnswer(err)
}

// Process returns the process that listens at the socket, as this one sees it, 0 if that is not known.
func (c *Client) Process() int {
	if c.base != local {
		return 0
	}
	conn, err := net.DialTimeout("unix", c.path, time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(u.Pid)
		}
	})
	return pid
}

// isStopped reports whether the process that listens is known to be stopped by a signal.
func (c *Client) isStopped() bool { return IsStopped(c.Process()) }

// IsStopped reports whether a process is stopped by a signal, or by a debugger.
func IsStopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	at := strings.LastIndex(string(stat), ") ")
	return err == nil && at >= 0 && strings.HasPrefix(strings.ToUpper(string(stat[at+2:])), "T")
}

// noAnswer is the error of a daemon, or a hub, that has not answered.
type noAnswer struct {
	error
	client *Client
}

func (e *noAnswer) Unwrap() error { return e.error }

func (c *Client) noAnswer(err error) error {
	if c.base != local {
		return err // it is another host's
	}
	return &noAnswer{err, c}
}

// wayOut is a command, and what it does.
type wayOut struct{ command, does string }

// WayOut returns lines that say what to do where a daemon of this host, or a hub, has not answered
// as it should: it does not run, is stopped, silent or starting. For other errors, there are none.
func WayOut(err error) (lines []string) {
	var e *noAnswer
	if !errors.As(err, &e) {
		return nil
	}
	restart, starting := "restart", new(api.StartingError)
	var all []wayOut
	switch pid := e.client.Process(); {
	case errors.Is(err, fs.ErrPermission):
		return nil // the error says it
	case errors.Is(err, ErrNotRunning), errors.Is(err, ErrHubNotRunning):
		restart = "start"
	case errors.As(err, &starting):
		restart = ""
		all = append(all, wayOut{"weir status", "says how far it is"})
	case IsStopped(pid):
		all = append(all, wayOut{"kill -CONT " + strconv.Itoa(pid), "continues it"})
	}
	state := "What it has attached filters on, but no list is read and nothing expires."
	switch {
	case e.client.hub:
		state = "The nodes filter on."
		all = append(all, wayOut{"weir hub run", restart + "s it"})
	case restart == "":
		state = "Until then, what was attached before filters on."
	default:
		all = append(all, wayOut{"systemctl " + restart + " weir", restart + "s it"})
	}
	if !e.client.hub {
		all = append(all, wayOut{"weir detach --all", "lets everything pass now, also without the daemon"},
			wayOut{"weir explain -c /etc/weir/weir.yaml ADDRESS", "answers from the saved state"})
	}
	if restart == "start" {
		all = append(all, wayOut{"--socket PATH", "names its socket, if it listens elsewhere"})
	}
	lines = append(lines, state)
	for _, w := range all {
		lines = append(lines, fmt.Sprintf("%-44s %s", w.command, w.does))
	}
	return lines
}

// hasEnded reports whether an error says that the other end has closed the connection, or could not
// take it.
func hasEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EAGAIN) ||
		strings.HasSuffix(err.Error(), "http: server closed idle connection") // of which net/http exports no error
}

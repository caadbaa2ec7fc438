package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// session is the terminals that a command depends on: those of its input and
// output, and the controlling terminals of the command and its ancestors. Under sudo, a
// command has a terminal of its own, which outlives the user's.
type session struct {
	terminals []*os.File
	processes []ancestor
}

// ancestor is a process with a controlling terminal.
type ancestor struct {
	pid     int
	started string // in clock ticks: a later process may have the same number
}

// newSession returns the session of this process, with those of its streams that are
// terminals.
func newSession(streams ...any) *session {
	s := &session{}
	for _, f := range streams {
		if t := terminalOf(f); t != nil {
			s.terminals = append(s.terminals, t)
		}
	}
	for pid := os.Getpid(); pid > 1; {
		p, parent, terminal := readProcess(pid)
		if terminal {
			s.processes = append(s.processes, p)
		} else if pid != os.Getpid() {
			break
		}
		pid = parent
	}
	return s
}

// readProcess returns a process, its parent, and whether it has a controlling
// terminal; 0 as the parent if there is no such process.
func readProcess(pid int) (p ancestor, parent int, terminal bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, 0, false
	}
	// The name, in parentheses, may contain anything. The fields behind it are 3 and on
	// of proc_pid_stat(5).
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return p, 0, false
	}
	parent, _ = strconv.Atoi(fields[1])
	return ancestor{pid, fields[19]}, parent, fields[4] != "0"
}

// lost reports whether a terminal is gone: its user may be locked out.
func (s *session) lost() bool {
	for _, f := range s.terminals {
		fds := []unix.PollFd{{Fd: int32(f.Fd())}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
			return true
		}
	}
	for _, p := range s.processes {
		if now, _, terminal := readProcess(p.pid); now != p || !terminal {
			return true
		}
	}
	return false
}

// hangUpGrace is how long the processes of a session may take to end after a SIGHUP.
const hangUpGrace = time.Second

// lostSoon reports whether a SIGHUP means that a terminal is gone. Otherwise somebody
// has sent it.
func (s *session) lostSoon(ctx context.Context) bool {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(hangUpGrace); !s.lost(); {
		select {
		case <-ctx.Done():
			return false
		case now := <-look.C:
			if now.After(end) {
				return false
			}
		}
	}
	return true
}

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Process is the process that a request came from, as far as the kernel says.
type Process struct {
	PID      int     `json:"pid,omitempty"`
	Command  string  `json:"command,omitempty"`   // its name, which it may choose
	Terminal string  `json:"terminal,omitempty"`  // as in pts/0
	Login    *uint32 `json:"login_uid,omitempty"` // the user who logged in, whom sudo does not change; nil: none did

	// Claimed says that the process itself has said so, since the daemon may not look.
	Claimed bool `json:"claimed,omitempty"`
}

// processHeader has the Process of a command, in JSON. It is believed of root alone, who
// could change the audit as well, and where the daemon may not see processes of others.
const processHeader = "Weir-Process"

// maxProcessHeader bounds it, in bytes.
const maxProcessHeader = 512

// OwnProcess returns this process.
func OwnProcess() Process {
	p, _ := readProcess(os.Getpid())
	return p
}

// ownProcess is the header's value.
var ownProcess = sync.OnceValue(func() string {
	text, err := json.Marshal(OwnProcess())
	if err != nil {
		return ""
	}
	return string(text)
})

// readProcess reads what the kernel says of a process. It does not read its memory, as
// /proc/PID/cmdline would, where the process could make it wait.
func readProcess(pid int) (Process, error) {
	p := Process{PID: pid}
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return p, err
	}
	p.Command, p.Terminal = parseStat(stat)
	login, err := os.ReadFile(dir + "/loginuid")
	if err != nil {
		return p, nil // the kernel has no audit
	}
	if uid, err := strconv.ParseUint(strings.TrimSpace(string(login)), 10, 32); err == nil && uint32(uid) != NoUID {
		p.Login = new(uint32(uid))
	}
	return p, nil
}

// parseStat returns the name and the terminal of a process: proc_pid_stat(5).
func parseStat(stat []byte) (command, terminal string) {
	from, to := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if from < 0 || to < from {
		return "", ""
	}
	command = strings.ToValidUTF8(string(stat[from+1:to]), "?")
	const ttyNr = 4 // after the name: state, ppid, pgrp, session
	rest := bytes.Fields(stat[to+1:])
	if len(rest) <= ttyNr {
		return command, ""
	}
	device, err := strconv.ParseInt(string(rest[ttyNr]), 10, 32)
	if err != nil {
		return command, ""
	}
	return command, terminalOf(uint64(uint32(device)))
}

// terminalOf returns the name of a terminal, "" for none. The numbers are those of
// Documentation/admin-guide/devices.txt in Linux.
func terminalOf(device uint64) string {
	const console, firstSlave, lastSlave, slaves, virtual = 4, 136, 143, 256, 64
	switch major, minor := unix.Major(device), unix.Minor(device); {
	case device == 0:
		return ""
	case major >= firstSlave && major <= lastSlave:
		return fmt.Sprintf("pts/%d", (major-firstSlave)*slaves+minor)
	case major == console && minor < virtual:
		return fmt.Sprintf("tty%d", minor)
	case major == console:
		return fmt.Sprintf("ttyS%d", minor-virtual)
	default:
		return fmt.Sprintf("%d:%d", major, minor)
	}
}

// peerProcess returns the process at the other end of a socket, whose number the kernel has
// noted when it connected. If the process has ended since, its number may be another's.
func peerProcess(fd, pid int) Process {
	if pid <= 0 {
		return Process{} // in another namespace
	}
	p, err := readProcess(pid)
	if err != nil || !peerLives(fd) {
		return Process{PID: pid}
	}
	return p
}

// peerLives reports whether the process that has connected to a socket has not ended.
func peerLives(fd int) bool {
	peer, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case err == nil:
		defer unix.Close(peer)
		return !happened(peer, unix.POLLIN)
	case errors.Is(err, unix.ENOPROTOOPT): // before Linux 6.5
		return connected(fd)
	default:
		return false
	}
}

// connected reports whether the other end of a socket is open: the end of a process closes
// it, unless another one has it, too.
func connected(fd int) bool { return !happened(fd, unix.POLLRDHUP) }

// happened reports whether one of some events has happened at a descriptor, or an error.
func happened(fd int, events int16) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
	return err != nil || n > 0
}

// claimed returns the process of a request of root's: what the kernel says of it, or else
// what it says itself.
func claimed(q *http.Request, known Process) Process {
	if known.Command != "" {
		return known
	}
	text := q.Header.Get(processHeader)
	var p Process
	if text == "" || len(text) > maxProcessHeader || json.Unmarshal([]byte(text), &p) != nil ||
		strings.ContainsFunc(p.Command+p.Terminal, notPrintable) {
		return known
	}
	p.PID, p.Claimed = known.PID, true
	return p
}

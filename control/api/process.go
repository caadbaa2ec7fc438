package api

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

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

// OwnProcess returns this process.
func OwnProcess() Process {
	p, _ := ProcessOf(os.Getpid())
	return p
}

// ProcessOf returns what the kernel says of a process. It does not read its memory, as
// /proc/PID/cmdline would, where the process could make it wait.
func ProcessOf(pid int) (Process, error) {
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

// terminalOf returns the name of a terminal, "" for none. The numbers are from
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

package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A session is lost with the terminal of an ancestor, too: sudo, which has lost its
// own, keeps up the one that it gave to the command.
func TestSessionLost(t *testing.T) {
	master, slave := newTerminal(t)
	parent := exec.Command("sleep", "60")
	parent.Stdin = slave
	parent.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { parent.Process.Kill(); parent.Wait() }()
	p, above, terminal := readProcess(parent.Process.Pid)
	if p.pid != parent.Process.Pid || p.started == "" || above != os.Getpid() || !terminal {
		t.Fatalf("%+v, parent %d, terminal %v", p, above, terminal)
	}
	own, end := newTerminal(t)
	s := newSession(end)
	if len(s.terminals) != 1 {
		t.Fatalf("%+v", s)
	}
	s.processes = append(s.processes, p)
	if s.lost() {
		t.Fatal("lost with all terminals there")
	}
	slave.Close()
	master.Close() // sleep does not survive that, nor does its terminal
	if !s.lostSoon(t.Context()) {
		t.Error("not lost with an ancestor's terminal")
	}

	s.processes = nil
	began := time.Now()
	if s.lostSoon(t.Context()) || time.Since(began) < hangUpGrace {
		t.Errorf("lost with all terminals there, in %v", time.Since(began))
	}
	own.Close()
	if !s.lostSoon(t.Context()) {
		t.Error("not lost with its own terminal")
	}
}

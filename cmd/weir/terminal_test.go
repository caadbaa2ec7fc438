package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// isWeir is set in the environment of the process that is weir itself.
const isWeir = "WEIR_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(isWeir) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A terminal may be slow to answer, or never do: a command that draws nothing
// asks it nothing.
func TestOtherCommandsLeaveTheTerminalAlone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	master, slave := newTerminal(t)

	// What it asks would be read below as what it said.
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := exec.CommandContext(ctx, self, "--version")
	p.Env = append(os.Environ(), isWeir+"=1", "TERM=xterm-256color")
	p.Stdin, p.Stdout, p.Stderr = slave, slave, slave
	p.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.Run(); err != nil {
		t.Fatalf("weir --version, with %v to do it: %v", patience, err)
	}
	said := make([]byte, 1<<10)
	n, err := master.Read(said)
	if want := "weir " + version + "\r\n"; err != nil || string(said[:n]) != want {
		t.Errorf("got %q, %v, want %q", said[:n], err, want)
	}
}

// newTerminal returns the two ends of a terminal.
func newTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		t.Fatal(errno)
	}
	slave = os.NewFile(fd, "the terminal")
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

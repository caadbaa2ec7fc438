// Package lab provides tests with two network namespaces with a veth pair between
// them, and raw sockets to send and receive frames with.
package lab

import (
	"os"
	"os/exec"
	"testing"

	"weir/control/demo/playground"
)

// Lab is a playground for a test. By convention the test sends at A and filters
// at B.
type Lab struct {
	A, B End
}

// End is one end of the wire: an interface in a network namespace.
type End playground.End

// Root ends the test where it is not root: skipped, but failed under CI=true,
// so that the skip cannot become the rule unnoticed.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root, and under CI=true may not be skipped")
	}
	t.Skip("needs root")
}

// Tool returns the path of a program of another project that a test needs, which the stage
// programs of .ci/run installs: go test -short skips the test. Where the program is missing, the
// test is skipped, too, but fails under CI=true.
func Tool(t testing.TB, program string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs %s, and go test -short leaves it out", program)
	}
	return Installed(t, program)
}

// Installed returns the path of a program that is on nearly every Linux host, such as ip. Where
// it is missing, the test is skipped, but fails under CI=true.
func Installed(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	missing := "needs " + program
	if of := debian[program]; of != "" {
		missing += ", of Debian's package " + of
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(missing + ", and under CI=true may not be skipped")
	}
	t.Skip(missing)
	return ""
}

// debian names the packages of programs that are called otherwise.
var debian = map[string]string{
	"apt-ftparchive": "apt-utils", "vtysh": "frr", "birdc": "bird2", "bird": "bird2", "createrepo_c": "createrepo-c",
	"fail2ban-server": "fail2ban", "flock": "util-linux", "ip": "iproute2", "nfacctd": "pmacct", "nfcapd": "nfdump",
	"promtool": "prometheus", "rpmsign": "rpm", "rsyslogd": "rsyslog", "sfacctd": "pmacct", "sfcapd": "nfdump-sflow",
	"systemd-analyze": "systemd", "systemd-nspawn": "systemd-container",
}

// New returns a lab, which is removed when the test ends. Without root, the
// test ends as with [Root]. The wire is nearly silent, but tests should count
// their own frames, not all that arrive.
func New(t testing.TB) *Lab {
	t.Helper()
	Root(t)
	p, err := playground.New("weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Lab{A: End(p.A), B: End(p.B)}
}

// Wire lays the wire between the namespaces, as New does. A test that has
// deleted an interface has it back this way.
func (l *Lab) Wire(t testing.TB) {
	t.Helper()
	p := playground.Playground{A: playground.End(l.A), B: playground.End(l.B)}
	if err := p.Wire(); err != nil {
		t.Fatal(err)
	}
}

// In calls fn in the end's network namespace. fn must not start goroutines,
// which would be elsewhere.
func (e End) In(t testing.TB, fn func()) {
	t.Helper()
	if err := playground.End(e).In(func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// Do calls fn in the end's network namespace, and returns its error. fn must not start
// goroutines, which would be elsewhere.
func (e End) Do(fn func() error) error { return playground.End(e).In(fn) }

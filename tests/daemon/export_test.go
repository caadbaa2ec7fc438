package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

// service is a program that runs beside the daemon.
type service struct {
	t    *testing.T
	path string
	log  string // the file with its output
	end  func() // ends it as its service does
	kill func()
}

// serve runs a program until the test ends or its end is called.
func serve(t *testing.T, path string, args ...string) *service {
	t.Helper()
	s := &service{t: t, path: path, log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := exec.Command(path, args...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Env = append(os.Environ(), "LC_ALL=C")
	if err := start(c, ""); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }()
	s.kill = func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	s.end = func() {
		if !strings.HasSuffix(path, "acctd") { // which waits for its plugins, and has written what it was to
			c.Process.Signal(syscall.SIGTERM)
			select {
			case <-ended:
			case <-time.After(wait.Patience):
			}
		}
		s.kill()
	}
	t.Cleanup(func() {
		s.end()
		if t.Failed() {
			t.Logf("%s:\n%s", path, s.printed())
		}
	})
	return s
}

func (s *service) printed() []byte {
	s.t.Helper()
	text := must.Read(s.t, s.log)
	return text
}

// untilPlugin waits until the plugin of a pmacct daemon takes records. It keeps earlier ones until
// more follow.
func (s *service) untilPlugin() {
	s.t.Helper()
	wait.For(s.t, s.path+" runs its plugin", func() bool { return bytes.Contains(s.printed(), []byte("Purging cache - END")) })
}

// listens waits until a port of UDP is in use, and what it has received was read.
func listens(t *testing.T, port int) {
	t.Helper()
	for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, file := range []string{"udp", "udp6"} {
			sockets, err := os.ReadFile("/proc/thread-self/net/" + file) // the first thread may be in another namespace
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(sockets)) {
				// "7: 0100007F:1F90 00000000:0000 07 tx_queue:rx_queue …"
				if s := strings.Fields(line); strings.HasSuffix(s[1], fmt.Sprintf(":%04X", port)) && strings.HasSuffix(s[4], ":00000000") {
					return
				}
			}
		}
	}
	t.Fatalf("nothing listens on port %d and reads", port)
}

// Two collectors read the same numbers of packets as weir counts, whatever they were
// counted under. Others that are dead harm nothing, and what they lose is counted.
func TestExport(t *testing.T) {
	t.Parallel()
	nfcapd, nfdump, nfacctd := lab.Tool(t, "nfcapd"), lab.Tool(t, "nfdump"), lab.Tool(t, "nfacctd")
	h := newHost(t)
	h.write("one.txt", []byte("198.51.100.0/24\n"))
	h.write("two.txt", []byte("203.0.113.0/28\n2001:db8:1::/48\n"))
	one, two := lab.FreePort(t), lab.FreePort(t)
	h.configure(h.B.Iface, `
lists:
  one: {sources: [{file: %s}], interval: 24h}
  two: {sources: [{file: %s}], interval: 24h}
trackers: [{key: src, threshold: 100pps}]
export:
  interval: 1s
  collectors:
    nfcapd: {ipfix: "udp://127.0.0.1:%d", templates: 1s}
    nfacctd: {ipfix: "udp://127.0.0.1:%d", templates: 1s}
    dead: {ipfix: "tcp://127.0.0.1:1"}
    deaf: {ipfix: "udp://127.0.0.1:1"}
`, h.path("one.txt"), h.path("two.txt"), one, two)
	flows := h.path("flows")
	if err := os.Mkdir(flows, 0o700); err != nil {
		t.Fatal(err)
	}
	collector := serve(t, nfcapd, "-w", flows, "-b", "127.0.0.1", "-p", strconv.Itoa(one), "-t", "3600", "-P", h.path("nfcapd.pid"))
	output := h.path("nfacctd.csv")
	h.write("nfacctd.conf", fmt.Appendf(nil, "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: %d\nplugins: print\n"+
		"aggregate: export_proto_sysid, src_host\nprint_refresh_time: 1\nprint_output: csv\nprint_output_file: %s\nprint_output_file_append: true\n", two, output))
	plugin := serve(t, nfacctd, "-f", h.path("nfacctd.conf"))
	listens(t, one)
	listens(t, two)
	plugin.untilPlugin()

	d := h.start(releases[0])
	tx := h.A.Sender(t)
	var frames [][]byte
	for n := range 40 {
		src := netip.AddrFrom4([4]byte{198, 51, 100, byte(n)})
		switch n % 4 {
		case 1:
			src = netip.AddrFrom4([4]byte{203, 0, 113, byte(n % 16)})
		case 2:
			src = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", n))
		case 3:
			src = netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
		}
		frames = append(frames, frameOf(h.Lab, listedKind, from(src)))
	}
	for range 3 { // in several intervals
		for n := range 2000 {
			if err := tx.SendAll(frames[n%len(frames)]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	const dropped = 3 * 1500
	all := h.untilDropped(t, dropped)
	failing := h.untilMetric(t, `weir_export_failing{collector="dead"}`, 1)
	d.stop() // which exports the last records
	listens(t, one)
	collector.end()
	if lost := failing[`weir_export_records_total{collector="dead",outcome="sent"}`]; lost != 0 {
		t.Errorf("%v records sent to a collector that is dead", lost)
	}

	counted, total := uint64(0), uint64(0)
	for _, r := range all.Reasons {
		total += r.Packets
	}
	out, err := exec.Command(nfdump, "-R", flows, "-q", "-N", "-o", "fmt:%exp|%sa|%pkt|%byt").CombinedOutput()
	if err != nil {
		t.Fatalf("nfdump: %v\n%s", err, out)
	}
	var bytes, fromListed uint64
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), "|")
		if len(f) != 4 || f[0] != "1" { // another domain: heavy hitters
			continue
		}
		counted += number(t, f[2])
		bytes += number(t, f[3])
		if f[1] != "0.0.0.0" {
			fromListed += number(t, f[2])
		}
	}
	if counted != total || bytes != all.PassedBytes+all.DroppedBytes || fromListed < dropped/2 || fromListed > dropped {
		t.Errorf("nfcapd has %d packets of %d bytes, %d of known sources; weir counted %d of %d, and dropped %d\n%s",
			counted, bytes, fromListed, total, all.PassedBytes+all.DroppedBytes, dropped, out)
	}
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		text, _ := os.ReadFile(output) // it is not there at first
		counted = 0
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.TrimSpace(line), ","); len(f) == 4 && f[1] == "1" {
				counted += number(t, f[2])
			}
		}
		if counted == total {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nfacctd has %d packets, weir counted %d\n%s", counted, total, text)
		}
	}
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// untilDropped waits until so many packets have been dropped, and returns the history's
// totals.
func (h *host) untilDropped(t *testing.T, packets uint64) api.HistoryPoint {
	t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		all := h.history().Total
		if all.Dropped == packets {
			return all
		}
		if all.Dropped > packets || time.Now().After(deadline) {
			t.Fatalf("%+v, want %d dropped", all, packets)
		}
	}
}

// untilMetric waits until a metric has a value, and returns all metrics, by their names
// with labels.
func (h *host) untilMetric(t *testing.T, name string, want float64) map[string]float64 {
	t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		all := h.metrics(t)
		if got, ok := all[name]; ok && got == want {
			return all
		} else if time.Now().After(deadline) {
			t.Fatalf("%s is %v, want %v", name, got, want)
		}
	}
}

// metrics returns all metrics, by their names with labels.
func (h *host) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	client := http.Client{Timeout: wait.Patience, Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", h.path("weir.sock")) },
		DisableKeepAlives: true,
	}}
	a, err := client.Get("http://weir/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(a.Body)
	a.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			all[line[:at]], _ = strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		}
	}
	return all
}

// rsyslog receives by UDP and TCP what was sent, message for message.
func TestSyslog(t *testing.T) {
	t.Parallel()
	rsyslogd := lab.Tool(t, "rsyslogd")
	h := newHost(t)
	udp, tcp := lab.FreePort(t), lab.FreePort(t)
	output := h.path("messages")
	h.write("rsyslog.conf", fmt.Appendf(nil, `
global(workDirectory="%s")
module(load="imudp")
module(load="imtcp")
input(type="imudp" address="127.0.0.1" port="%d")
input(type="imtcp" address="127.0.0.1" port="%d")
template(name="all" type="string" string="%%inputname%%|%%pri%%|%%app-name%%|%%msgid%%|%%structured-data%%|%%msg%%\n")
*.* action(type="omfile" file="%s" template="all")
`, h.dir, udp, tcp, output))
	serve(t, rsyslogd, "-n", "-iNONE", "-f", h.path("rsyslog.conf"))
	listens(t, udp)
	h.configure(h.B.Iface, `
lists: {}
trackers: [{key: src, threshold: 100pps, duration: 1s}]
notify:
  targets:
    cef: {syslog: "udp://127.0.0.1:%d", format: cef}
    text: {syslog: "tcp://127.0.0.1:%d"}
`, udp, tcp)
	d := h.start(releases[0])
	tx := h.A.Sender(t)
	frame := frameOf(h.Lab, listedKind, from(netip.MustParseAddr("198.51.100.7")))
	for range 1000 {
		if err := tx.SendAll(frame); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
			text, _ := os.ReadFile(output) // it is not there at first
			if regexp.MustCompile("(?m)^" + what + "$").Match(text) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %s in\n%s", what, text)
			}
		}
	}
	has(`imtcp\|28\|weir\|heavy\|\[weir@32473 id="\w+" kind="heavy" state="begin" flow="198\.51\.100\.7" tracker="src" action="report" packets="\d+" .*\]\| ?198\.51\.100\.7 .*`)
	has(`imudp\|28\|weir\|heavy\|-\| ?CEF:0\|weir\|weir\|.*\|heavy-begin\|198\.51\.100\.7 .*\|5\|rt=\d+ .* src=198\.51\.100\.7 .*act=report.*`)
	if out, code := h.command("notify", "test", "--socket", h.path("weir.sock")); code != 0 {
		t.Errorf("weir notify test: %d\n%s", code, out)
	}
	has(`imtcp\|30\|weir\|test\|.*`)
	has(`imudp\|30\|weir\|test\|.*`)
	has(`imtcp\|30\|weir\|heavy\|\[.* state="end" .*`)
	const delivered = 2 // begin and end
	h.untilMetric(t, `weir_notifications_total{outcome="delivered",target="text"}`, delivered)
	d.stop()
	text := must.Read(t, output)
	if got := strings.Count(string(text), "imtcp|"); got != delivered+1 { // and the test
		t.Errorf("%d messages by TCP, and weir has delivered %v\n%s", got, delivered, text)
	}
}

package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/capture"
	"weir/control/observe/events"
	"weir/tests/must"
)

var eventTime = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.Local)

// eventOf is an event of a packet, changed.
func eventOf(src string, change func(*events.Event)) events.Event {
	e := events.Event{
		Time: eventTime, Target: attach.Interface{Iface: "eth0"}, Dropped: true, List: "feed", OneIn: 1, Length: 1514,
		Frame: []byte{
			2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
			0x0f, 0xa0, 0, 53, 0, 8, 0, 0,
		},
	}
	e.Reason, _ = events.ParseReason("blocked")
	t := &e.Tuple
	t.Src, t.Proto, t.HasPorts, t.SrcPort, t.DstPort = netip.MustParseAddr(src), 17, true, 4000, 53
	t.Dst = t.Src.Next()
	change(&e)
	return e
}

// happening are events of all kinds.
var happening = []events.Event{
	eventOf("192.0.2.1", func(*events.Event) {}),
	eventOf("2001:db8::1", func(e *events.Event) { e.OneIn, e.Netns = 4, "lab" }),
	{Time: eventTime, Lost: 1234},
	eventOf("192.0.2.7", func(e *events.Event) {
		e.Reason, _ = events.ParseReason("malformed")
		e.Dropped, e.List = false, ""
	}),
}

// reporting serves a daemon with these events, and records the request. Then
// it stops, or goes on without more events.
func reporting(t *testing.T, all []events.Event, stops bool) (socket string, asked *api.Events) {
	asked = new(api.Events)
	return serving(t, served{events: func(w api.Events) <-chan events.Event {
		*asked = w
		reported := make(chan events.Event, len(all))
		for _, e := range all {
			if !w.Frames {
				e.Frame = nil
			}
			reported <- e
		}
		if stops {
			close(reported)
		}
		return reported
	}}), asked
}

func TestEvents(t *testing.T) {
	const want = `03:04:05.678  eth0     drop  blocked    udp 192.0.2.1:4000 > 192.0.2.2:53  1514 bytes  list feed
03:04:05.678  eth0     drop  blocked    udp [2001:db8::1]:4000 > [2001:db8::2]:53  1514 bytes  list feed  1 of 4  in namespace lab
03:04:05.678  1,234 events are lost
03:04:05.678  eth0     pass  malformed  udp 192.0.2.7:4000 > 192.0.2.8:53  1514 bytes
`
	socket, asked := reporting(t, happening, false)
	for _, c := range []struct {
		args  []string
		lines int
	}{
		{nil, 4}, // it takes a second
		{[]string{"--count", "1"}, 1},
		{[]string{"--count", "3", "--follow", "--reason", "blocked,rate-limited", "--reason", "heavy"}, 4},
	} {
		code, out, log := weir(t, "", append([]string{"events", "--socket", socket}, c.args...)...)
		lines := strings.SplitAfter(want, "\n")[:c.lines]
		if code != exitOK || log != "" || out != strings.Join(lines, "") {
			t.Errorf("%v: exit code %d\n%s%s\nwant\n%s", c.args, code, out, log, strings.Join(lines, ""))
		}
	}
	if len(asked.Reasons) != 3 || asked.Reasons[2] != "heavy" || asked.Frames {
		t.Errorf("asked for %+v", asked)
	}
	code, out, log := weir(t, "", "events", "--socket", socket, "--json", "--count", "2")
	var e api.Event
	if first, rest, _ := strings.Cut(out, "\n"); code != exitOK || log != "" || strings.Count(rest, "\n") != 1 ||
		json.Unmarshal([]byte(first), &e) != nil || e.Src != "192.0.2.1" || *e.DstPort != 53 || !e.Time.Equal(eventTime) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

func TestNoEvents(t *testing.T) {
	socket, _ := reporting(t, nil, false)
	code, out, log := weir(t, "", "events", "--socket", socket)
	if code != exitOK || out != "" || log != "no such packet within a second: --follow goes on\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

func TestCapture(t *testing.T) {
	socket, asked := reporting(t, happening, false)
	path := filepath.Join(t.TempDir(), "drops.pcapng")
	// It goes on until the time is over.
	code, out, log := weir(t, "", "capture", "--socket", socket, "-w", path, "--duration", "300ms", "--reason", "blocked")
	if code != exitOK || out != "" || log != "3 packets of some 6, and 1,234 are lost: they came too fast\n" {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	if !asked.Frames || len(asked.Reasons) != 1 {
		t.Errorf("asked for %+v", asked)
	}
	written := must.Read(t, path)
	// Blocks are read by the capture package; comments are there as text.
	for _, want := range []string{"weir " + version, "eth0", "eth0 in namespace lab", "blocked, list feed\x00", "blocked, list feed, 1 of 4\x00", "malformed\x00"} {
		if !strings.Contains(string(written), want) {
			t.Errorf("no %q in the file", want)
		}
	}
	checkCapture(t, string(written), 3)

	code, out, log = weir(t, "", "capture", "--socket", socket, "-w", "-", "--count", "1")
	if code != exitOK || log != "1 packet\n" {
		t.Errorf("exit code %d, %s", code, log)
	}
	checkCapture(t, out, 1)
}

// checkCapture reads a capture of events.
func checkCapture(t *testing.T, file string, packets int) {
	t.Helper()
	r, err := capture.NewReader("test", strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sent := []events.Event{happening[0], happening[1], happening[3]}
	n := 0
	for p, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		if want := sent[n]; string(p.Data) != string(want.Frame) || p.Length != want.Length || !p.Time.Equal(want.Time) {
			t.Errorf("%+v, want %+v", p, want)
		}
		n++
	}
	if n != packets {
		t.Errorf("%d packets, want %d", n, packets)
	}
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Log("tcpdump is not there to read it, too")
		return
	}
	read := exec.Command(tcpdump, "-n", "-r", "-")
	read.Stdin = strings.NewReader(file)
	out, err := read.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "IP 192.0.2.1.4000 > 192.0.2.2.53:") || strings.Count(string(out), ".4000 > ") != packets {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestEventsFailures(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.sock")
	stopping, _ := reporting(t, happening, true)
	kept := file(t, "kept.pcapng", "precious")
	cut := filepath.Join(t.TempDir(), "cut.pcapng")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"events", "--socket", missing}, exitFailure, "weir: the daemon is not running"},
		{[]string{"capture", "-w", kept, "--socket", missing}, exitFailure, "weir: the daemon is not running"},
		{[]string{"capture", "-w", filepath.Dir(kept), "--socket", stopping}, exitFailure, "is a directory"},
		{[]string{"capture", "-w", "/dev/full", "--socket", stopping}, exitFailure, "no space left"},
		{[]string{"capture", "-w", cut, "--socket", stopping}, exitFailure, "3 packets of some 6, and 1,234 are lost: they came too fast\nweir: weir has stopped\n"},
		{[]string{"capture", "-w", cut, "--count", "3", "--socket", stopping}, exitOK, "3 packets"},
		{[]string{"capture"}, exitUsage, "--write is missing"},
		{[]string{"capture", "-w", cut, "--count", "-1"}, exitUsage, "--count -1"},
		{[]string{"capture", "-w", cut, "--duration", "-1s"}, exitUsage, `invalid duration "-1s"`},
		{[]string{"capture", "-w", cut, "--reason", "nosuch"}, exitUsage, `unknown reason "nosuch": want allowed,`},
		{[]string{"capture", "-w", cut, "stray"}, exitUsage, "stray"},
		{[]string{"events", "--count", "-1"}, exitUsage, "--count -1"},
		{[]string{"events", "--reason", "blocked,clean"}, exitUsage, "use tcpdump"},
		{[]string{"events", "stray"}, exitUsage, "stray"},
	} {
		code, out, log := weir(t, "", c.args...)
		if code != c.code || out != "" || !strings.Contains(log, c.want) {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(c.args, " "), code, out, log)
		}
	}
	if b, err := os.ReadFile(kept); err != nil || string(b) != "precious" {
		t.Errorf("a capture of nothing has overwritten a file: %q, %v", b, err)
	}
	// What was followed is shown before it ends.
	code, out, log := weir(t, "", "events", "--follow", "--socket", stopping)
	if code != exitFailure || strings.Count(out, "\n") != 4 || log != "weir: weir has stopped\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

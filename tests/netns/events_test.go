package netns

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/capture"
	"weir/control/config"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// startWithLists runs a filter with lists at the lab's end B, and returns its
// socket.
func startWithLists(t *testing.T, l *lab.Lab, monitor bool) (f *filter, socket string) {
	t.Helper()
	c := configuration(t, target(l.B))
	addList(t, c, config.Block, "feed.txt", "192.0.2.0/24\n2001:db8::/32\n")
	addList(t, c, config.Block, "dns.txt", "udp *:* > 203.0.113.1:53\n")
	addList(t, c, config.Allow, "ours.txt", "192.0.2.64/26\n")
	c.Malformed, c.Monitor = verdict.Drop, monitor
	return serve(t, c), string(c.API.Socket)
}

// awaitEvents subscribes, sends frames, and returns the expected number of
// events.
func awaitEvents(t *testing.T, socket string, w *lab.Probe, n int, frames ...[]byte) (all []api.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	stream, err := client.Dial(socket).Events(ctx, api.Events{Frames: true, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	w.Pass(t, frames...)
	for e, err := range stream {
		if err != nil {
			t.Fatalf("%d events of %d, then %v", len(all), n, err)
		}
		if all = append(all, *e); len(all) == n {
			break
		}
	}
	return all
}

// Frames that are dropped, or nearly so, are reported, each with its reason and
// list, and other programs can read a capture of them.
func TestEvents(t *testing.T) {
	type report struct{ reason, verdict, list, src string }
	cases := []struct {
		frame         []byte
		want, monitor report
	}{
		{frameOf(udp("192.0.2.1", "203.0.113.9", 80)), report{"blocked", "drop", "feed", "192.0.2.1"}, report{"would-block", "pass", "feed", "192.0.2.1"}},
		{frameOf(udp("198.51.100.1", "203.0.113.9", 80)), report{}, report{}},
		{forms4["QinQ"](frameOf(udp("198.51.100.1", "203.0.113.1", 53))),
			report{"blocked", "drop", "dns", "198.51.100.1"}, report{"would-block", "pass", "dns", "198.51.100.1"}},
		{frameOf(udp("192.0.2.65", "203.0.113.9", 80)), report{"allowed", "pass", "ours", "192.0.2.65"}, report{"allowed", "pass", "ours", "192.0.2.65"}},
		{set(frameOf(udp("198.51.100.1", "203.0.113.9", 80)), 14, 0x41),
			report{"malformed", "drop", "", "198.51.100.1"}, report{"malformed", "pass", "", "198.51.100.1"}},
		{append(frameOf(udp("2001:db8::1", "2001:db9::1", 80)), make([]byte, 1000)...),
			report{"blocked", "drop", "feed", "2001:db8::1"}, report{"would-block", "pass", "feed", "2001:db8::1"}},
	}
	for _, monitor := range []bool{false, true} {
		l := lab.New(t)
		_, socket := startWithLists(t, l, monitor)
		w := lab.NewProbe(t, l)
		var frames, dropped [][]byte
		var want []report
		for i, c := range cases {
			frames = append(frames, c.frame)
			if c.want == (report{}) {
				continue
			}
			dropped = append(dropped, l.Numbered(c.frame, uint64(i+1)))
			if monitor {
				c.want = c.monitor
			}
			want = append(want, c.want)
		}
		began := time.Now()
		var file bytes.Buffer
		out, err := capture.NewWriter(&file, "test")
		if err != nil {
			t.Fatal(err)
		}
		all := awaitEvents(t, socket, w, len(want), frames...)
		for i, e := range all {
			if got := (report{e.Reason, e.Verdict, e.List, e.Src}); got != want[i] {
				t.Errorf("event %d: %+v, want %+v", i, got, want[i])
			}
			if e.Interface != l.B.Iface || e.Netns != l.B.Netns || e.OneIn != 1 || e.Time.Before(began.Add(-time.Second)) || e.Time.After(time.Now().Add(time.Second)) {
				t.Errorf("event %d: %+v", i, e)
			}
			if !bytes.Equal(e.Frame, dropped[i][:min(256, len(dropped[i]))]) || e.Length != len(dropped[i]) {
				t.Errorf("event %d: %d bytes, % x\nwant %d, % x", i, e.Length, e.Frame, len(dropped[i]), dropped[i])
			}
			if err := out.Write(capture.Packet{Time: e.Time, Data: e.Frame, Length: e.Length}, capture.Note{Interface: e.Interface}); err != nil {
				t.Fatal(err)
			}
		}
		checkFile(t, file.Bytes(), dropped)
	}
}

// checkFile reads a capture in both ways that there are.
func checkFile(t *testing.T, file []byte, frames [][]byte) {
	t.Helper()
	r, err := capture.NewReader("test", bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, f := range frames {
		p, err := r.Next()
		if err != nil || !bytes.HasPrefix(f, p.Data) || len(p.Data) != min(256, len(f)) || p.Length != len(f) {
			t.Errorf("packet %d: %+v, %v", i, p, err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("more packets, or %v", err)
	}
	read := exec.Command(lab.Installed(t, "tcpdump"), "-n", "-e", "-r", "-")
	read.Stdin = bytes.NewReader(file)
	out, err := read.CombinedOutput()
	if err != nil || strings.Count(string(out), "ethertype") < len(frames) || !strings.Contains(string(out), "192.0.2.1.4000 > 203.0.113.9.80:") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Events continue after a reload and for an interface that returns, and
// subscribers receive no earlier ones.
func TestEventsGoOn(t *testing.T) {
	l := lab.New(t)
	f, socket := startWithLists(t, l, false)
	listed := frameOf(udp("192.0.2.1", "203.0.113.9", 80))
	w := lab.NewProbe(t, l)
	w.Pass(t, listed, listed, listed)
	for i := range 2 {
		if got := awaitEvents(t, socket, w, 1, listed); got[0].List != "feed" {
			t.Errorf("round %d: %+v", i, got)
		}
		if _, err := f.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.A.In(t, func() {
		iface, err := netlink.LinkByName(l.A.Iface)
		if err == nil {
			err = netlink.LinkDel(iface)
		}
		if err != nil {
			t.Error(err)
		}
	})
	l.Wire(t)
	w = lab.NewProbe(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	report, err := client.Dial(socket).Events(ctx, api.Events{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	sending.Go(func() {
		for ctx.Err() == nil {
			w.Send(l.Numbered(listed, 1)) // until it is filtered and reported again
			time.Sleep(20 * time.Millisecond)
		}
	})
	for e, err := range report {
		if err != nil || e.Reason != "blocked" {
			t.Errorf("%+v, %v", e, err)
		}
		break
	}
}

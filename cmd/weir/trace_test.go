package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/capture"
	"weir/control/stage/digest"
)

// datagrams writes a capture of one packet with these TTLs.
func datagrams(t *testing.T, ttls ...byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcapng")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := capture.NewWriter(f, "test")
	if err != nil {
		t.Fatal(err)
	}
	for i, ttl := range ttls {
		frame := append(make([]byte, 12), 8, 0,
			0x45, 0, 0, 28, 0, 1, 0, 0, 0, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, // IPv4
			0, 5, 0, 9, 0, 8, 0, 0) // UDP
		frame[22] = ttl
		at := time.Date(2026, 1, 1, 12, 0, 0, i*1e6, time.Local)
		if err := w.Write(capture.Packet{Time: at, Data: frame, Length: len(frame)}, capture.Note{Interface: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestTrace(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.Local)
	weirOf := func(after time.Duration, chance float64) string {
		return serving(t, served{traced: &api.Traced{Version: 3, Interfaces: []api.TracedInterface{{Name: "eth0", Since: &at, Packets: []api.TracedPacket{
			{Slices: []api.TracedSlice{{Start: at.Add(after), Length: 1, Chance: chance}}, Chance: chance},
		}}}}})
	}
	edge, core := weirOf(time.Second, 0.01), weirOf(0, 0.02)
	file := datagrams(t, 60)
	code, out, log := weir(t, "", "trace", "--node", "edge="+edge, "--node", "core="+core, "--link", "edge-core", "--from", "edge", file)
	const want = `packet 1: udp 192.0.2.1:5 > 198.51.100.1:9, captured 2026-01-01 12:00:00.000
  core  eth0  12:00:00.000 for 1s  by chance 2 %
  edge  eth0  12:00:01.000 for 1s  by chance 1 %
  path, back from edge; by chance there are 0 nodes too many on it:
    edge (by chance 1 %)
    └─ core (by chance 2 %)
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	code, out, log = weir(t, "", "trace", "--json", "--socket", edge, file)
	var got struct{ Traces []digest.Trace }
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || log != "" {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	if all := got.Traces; len(all) != 1 || len(all[0].Seen) != 1 || all[0].Seen[0].Node != "here" || all[0].Path != nil || len(all[0].Unknown) != 0 {
		t.Errorf("%+v", got)
	}

	// Who has forgotten, or does not answer, has not said that the packet did not pass.
	ofSince := func(since *time.Time) string {
		return serving(t, served{traced: &api.Traced{Version: 3, Interfaces: []api.TracedInterface{{Name: "eth0", Since: since, Packets: []api.TracedPacket{{}}}}}})
	}
	late := at.Add(5*time.Second + 1) // the window's end, and more
	for _, c := range []struct {
		since   *time.Time
		nowhere bool // one that does not answer as well
		want    string
	}{
		{&at, false, "  no node has seen it\n"},
		{&late, false, "  n: unknown: no answer, no digests of that time, or digests of an older version of weir\n"},
		{nil, false, "  n: unknown: no answer, no digests of that time, or digests of an older version of weir\n"},
		{&at, true, "  x: unknown: no answer, no digests of that time, or digests of an older version of weir\n  no node has seen it\n"},
	} {
		args, code := []string{"trace", "--node", "n=" + ofSince(c.since), file}, exitOK
		if c.nowhere {
			args, code = append(args, "--node", "x="+file+"x"), exitFailure
		}
		got, out, _ := weir(t, "", args...)
		if _, says, _ := strings.Cut(out, "\n"); got != code || says != c.want {
			t.Errorf("%v: exit code %d, %q; want %d, %q", c, got, says, code, c.want)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--node", "edge", file}, exitUsage, "NAME="},
		{[]string{"--link", "edge", file}, exitUsage, "two nodes"},
		{[]string{"--node", "a=" + edge, "--link", "a-b", "--from", "a", file}, exitUsage, "unknown node b"},
		{[]string{"--node", "a=https://localhost:1", file}, exitUsage, "--cert"},
		{[]string{"--count", "-1", file}, exitUsage, "--count"},
		{[]string{"--window", "0s", file}, exitUsage, "window"},
		{nil, exitUsage, "CAPTURE is missing"},
		{[]string{"--socket", edge + "x", file}, exitFailure, "node here: the daemon is not running"},
		{[]string{"--socket", serving(t, served{}), file}, exitFailure, "digest.rate"},
		{[]string{file + "x"}, exitFailure, "no such file"},
	} {
		if code, _, log := weir(t, "", append([]string{"trace"}, c.args...)...); code != c.code || !strings.Contains(log, c.want) {
			t.Errorf("%v: exit code %d, %s; want %d, %q", c.args, code, log, c.code, c.want)
		}
	}
}

func TestTraceLoops(t *testing.T) {
	code, out, log := weir(t, "", "trace", "--loops", datagrams(t, 64, 62, 60, 58))
	const want = `packet 3: udp 192.0.2.1:5 > 198.51.100.1:9 came again and again, TTL 64 to 60
1 loop is suspected in 4 packets
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	for _, args := range [][]string{{"--node", "a=/run/a.sock"}, {"--socket", "/run/a.sock"}, {"--link", "a-b"}, {"--from", "a"}, {"--window", "1s"}, {"--count", "1"}} {
		code, _, log := weir(t, "", append([]string{"trace", "--loops", datagrams(t, 64)}, args...)...)
		if code != exitUsage || !strings.Contains(log, args[0]+" with --loops") {
			t.Errorf("%v: exit code %d, %s", args, code, log)
		}
	}
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("a signal"))
	capture := datagrams(t, 64, 62, 60)
	var b strings.Builder
	if code := execute(ended, []string{"trace", "--loops", capture, capture}, strings.NewReader(""), io.Discard, &b); code != exitFailure || b.String() != "weir: a signal\n" {
		t.Errorf("after a signal: exit code %d, %s", code, b.String())
	}
	code, out, _ = weir(t, "", "trace", "--loops", "--json", datagrams(t, 64, 63, 63))
	if code != exitOK || !strings.Contains(out, `"loops": []`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

package replay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"weir/control/engine"
)

// captureOf returns a pcap file with a number of packets that weir does not
// filter.
func captureOf(packets int) []byte {
	frame := make([]byte, 60)
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2) // version 2.4
	b = le.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 1 << 16, 1} { // zone, accuracy, snapshot length, Ethernet
		b = le.AppendUint32(b, v)
	}
	for range packets {
		for _, v := range []uint32{0, 0, uint32(len(frame)), uint32(len(frame))} {
			b = le.AppendUint32(b, v)
		}
		b = append(b, frame...)
	}
	return b
}

func replayTo(verdicts string, packets int) (*Summary, error) {
	g, err := engine.Reference(nil, engine.Config{})
	if err != nil {
		return nil, err
	}
	o := Options{Engine: g, Kind: InGo, Verdicts: verdicts, Stdin: bytes.NewReader(captureOf(packets))}
	return Files(context.Background(), o, []string{"-"})
}

func TestVerdicts(t *testing.T) {
	name := filepath.Join(t.TempDir(), "verdicts.csv")
	s, err := replayTo(name, 2)
	if err != nil || s.Packets != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	const want = "packet,verdict,reason,list\n1,pass,not-ip,\n2,pass,not-ip,\n"
	if got, err := os.ReadFile(name); string(got) != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A failure to write verdicts is reported once, whether it occurs in between or
// at the end.
func TestVerdictsUnwritten(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	for _, packets := range []int{0, 1, 10_000} {
		_, err := replayTo(full, packets)
		if !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), full) != 1 {
			t.Errorf("%d packets: %v", packets, err)
		}
	}
	if s, err := replayTo(t.TempDir(), 1); err == nil || s != nil {
		t.Errorf("into a directory: %+v, %v", s, err)
	}
}

// An earlier result stays where captures cannot be read, but for one that is cut short, and a
// capture is not taken for the file of verdicts.
func TestVerdictsReplaced(t *testing.T) {
	dir := t.TempDir()
	name, capture, cut := filepath.Join(dir, "verdicts.csv"), filepath.Join(dir, "x.pcap"), filepath.Join(dir, "cut.pcap")
	whole := captureOf(2)
	for path, content := range map[string][]byte{name: []byte("before"), capture: whole, cut: whole[:len(whole)-1]} {
		if err := os.WriteFile(path, content, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	g, err := engine.Reference(nil, engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	content := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("a signal"))
	for _, c := range []struct {
		ctx      context.Context
		verdicts string
		captures []string
		want     string // part of the error
	}{
		{t.Context(), name, []string{filepath.Join(dir, "typo")}, "no such file"},
		{t.Context(), filepath.Join(dir, "none.csv"), []string{filepath.Join(dir, "typo")}, "no such file"},
		{t.Context(), filepath.Join(dir, ".", "x.pcap"), []string{capture}, "is a capture"},
		{ended, name, []string{capture}, "a signal"},
		{t.Context(), name, []string{capture, filepath.Join(dir, "typo")}, "no such file"},
		{t.Context(), link, []string{cut}, "cut short"},
		{t.Context(), link, []string{capture}, ""},
	} {
		_, err := Files(c.ctx, Options{Engine: g, Kind: InGo, Verdicts: c.verdicts}, c.captures)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.verdicts, err, c.want)
		}
		want := "before"
		switch c.want {
		case "cut short":
			want = "packet,verdict,reason,list\n1,pass,not-ip,\n"
		case "":
			want = "packet,verdict,reason,list\n1,pass,not-ip,\n2,pass,not-ip,\n"
		}
		if got := content(name); got != want {
			t.Errorf("%v: %q, want %q", c.captures, got, want)
		}
		if content(capture) != string(captureOf(2)) {
			t.Fatal("the capture is lost")
		}
		if all, _ := os.ReadDir(dir); len(all) != 4 {
			t.Errorf("%v: %v", c.captures, all)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

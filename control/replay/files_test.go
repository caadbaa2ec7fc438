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

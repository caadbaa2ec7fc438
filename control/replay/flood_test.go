package replay

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/capture"
	"weir/tests/must"
)

// TestFlood searches a capture of twelve quiet seconds and three of a flood of NTP answers.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	path, verdicts := filepath.Join(dir, "flood.pcapng"), filepath.Join(dir, "verdicts.csv")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := capture.NewWriter(file, "test")
	if err != nil {
		t.Fatal(err)
	}
	write := func(second, i, sport, length int) {
		frame := make([]byte, 60)
		copy(frame[12:], []byte{8, 0, 0x45})
		binary.BigEndian.PutUint16(frame[16:], uint16(length))
		copy(frame[22:], []byte{60, 17, 0, 0, 11, byte(i >> 8), byte(i), byte(second), 203, 0, 113, 10})
		binary.BigEndian.PutUint16(frame[34:], uint16(sport))
		binary.BigEndian.PutUint16(frame[36:], 443)
		at := time.Unix(1_700_000_000+int64(second), int64(i)*int64(100*time.Microsecond))
		if err := w.Write(capture.Packet{Time: at, Data: frame, Length: length + 14}, capture.Note{}); err != nil {
			t.Fatal(err)
		}
	}
	for second := range 15 {
		for i := range 300 {
			write(second, i, 2000+i, 100+i)
		}
		for i := 300; i < 3000 && second >= 12; i++ {
			write(second, i, 123, 468)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Flood(context.Background(), FloodOptions{Verdicts: verdicts}, path)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Findings) != 1 || s.Findings[0].Seconds != 13 || len(s.Findings[0].Rules) != 1 || !strings.Contains(s.Findings[0].Rules[0].Pattern, "length 468") {
		t.Fatalf("%+v", s.Findings)
	}
	if s.Dropped != 2*2700 {
		t.Errorf("%d packets dropped, want those of the flood's second and third second", s.Dropped)
	}
	b := must.Read(t, verdicts)
	if drops := strings.Count(string(b), ",drop,blocked,"); drops != s.Dropped || strings.Count(string(b), "\n") != s.Packets+1 {
		t.Errorf("verdicts: %d lines, %d drops", strings.Count(string(b), "\n"), drops)
	}
}

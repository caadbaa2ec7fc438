package capture_test

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"weir/control/capture"
	"weir/tests/seed"
)

// draw returns packets of random bytes, some captured in part, and of times
// that rise by whole units.
func draw(t *testing.T, unit time.Duration) []capture.Packet {
	r := seed.New(t)
	at := time.Unix(stampSec, 0)
	packets := make([]capture.Packet, 200)
	for i := range packets {
		data := make([]byte, r.IntN(2000))
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		at = at.Add(unit * time.Duration(r.Uint32()>>4))
		packets[i] = capture.Packet{Time: at, Data: data, Length: len(data) + max(0, r.IntN(200)-100)}
	}
	return packets
}

func info(p capture.Packet) gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: p.Length}
}

// What pcapgo writes is read as it was.
func TestReadsPcapgo(t *testing.T) {
	type writer interface {
		WritePacket(gopacket.CaptureInfo, []byte) error
	}
	for _, c := range []struct {
		name  string
		unit  time.Duration
		begin func(io.Writer) (writer, error)
	}{
		{"pcap", time.Microsecond, func(to io.Writer) (writer, error) {
			w := pcapgo.NewWriter(to)
			return w, w.WriteFileHeader(65535, layers.LinkTypeEthernet)
		}},
		{"pcap in nanoseconds", time.Nanosecond, func(to io.Writer) (writer, error) {
			w := pcapgo.NewWriterNanos(to)
			return w, w.WriteFileHeader(65535, layers.LinkTypeEthernet)
		}},
		{"pcapng", time.Nanosecond, func(to io.Writer) (writer, error) {
			return pcapgo.NewNgWriter(to, layers.LinkTypeEthernet)
		}},
	} {
		var file bytes.Buffer
		w, err := c.begin(&file)
		if err != nil {
			t.Fatal(err)
		}
		packets := draw(t, c.unit)
		for _, p := range packets {
			if err := w.WritePacket(info(p), p.Data); err != nil {
				t.Fatal(err)
			}
		}
		if ng, ok := w.(*pcapgo.NgWriter); ok {
			if err := ng.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		check(t, c.name, "", file.Bytes(), packets...)
	}
}

// What is written, pcapgo reads as it was.
func TestPcapgoReads(t *testing.T) {
	interfaces := []string{"eth0", "eth1", "wan"}
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, "weir test")
	if err != nil {
		t.Fatal(err)
	}
	packets := draw(t, time.Nanosecond)
	for i, p := range packets {
		note := capture.Note{Interface: interfaces[i%len(interfaces)], Dropped: i%2 == 0, Comment: "blocked"}
		if err := w.Write(p, note); err != nil {
			t.Fatal(err)
		}
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range packets {
		data, got, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		if got.InterfaceIndex != i%len(interfaces) || !got.Timestamp.Equal(want.Time) ||
			got.Length != want.Length || !bytes.Equal(data, want.Data) {
			t.Fatalf("packet %d: %+v, want %+v with the same bytes", i, got, info(want))
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	var names []string
	for i := range r.NInterfaces() {
		n, err := r.Interface(i)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, n.Name)
	}
	if !slices.Equal(names, interfaces) || r.SectionInfo().Application != "weir test" {
		t.Errorf("interfaces %q of %q, want %q of weir test", names, r.SectionInfo().Application, interfaces)
	}
}

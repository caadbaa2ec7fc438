package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/capture"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
)

// errorWriter has room for some writes.
type errorWriter struct{ room int }

func (w *errorWriter) Write(b []byte) (int, error) {
	if w.room--; w.room < 0 {
		return 0, errors.New("no space left")
	}
	return len(b), nil
}

var written = []struct {
	capture.Packet
	capture.Note
}{
	{capture.Packet{Data: frameTo(53), Length: len(frameTo(53))}, capture.Note{Interface: "eth0", Dropped: true, Comment: "blocked by feed"}},
	{capture.Packet{Data: frameTo(54)[:41], Length: 1514}, capture.Note{Interface: "eth1", Out: true, Comment: "monitored"}},
	{capture.Packet{Data: frameTo(55)[:21], Length: 21}, capture.Note{Interface: "eth0", Dropped: true}},
	{capture.Packet{Data: frameTo(56)[:14], Length: 60}, capture.Note{Dropped: true, Comment: "bytes beyond ASCII: é"}},
}

func frameTo(port uint16) []byte {
	return packet.Frame(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: port})
}

func writtenAt(i int) time.Time { return time.Unix(stampSec, stampNano+int64(i)).UTC() }

func write(t *testing.T, to io.Writer) {
	t.Helper()
	w, err := capture.NewWriter(to, "weir test")
	for i, p := range written {
		p.Packet.Time = writtenAt(i)
		err = errors.Join(err, w.Write(p.Packet, p.Note))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What is written is read as it was.
func TestWriter(t *testing.T) {
	var file bytes.Buffer
	write(t, &file)
	r, err := capture.NewReader("test", &file)
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for p, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		want := written[i].Packet
		if !bytes.Equal(p.Data, want.Data) || p.Length != want.Length || !p.Time.Equal(writtenAt(i)) {
			t.Errorf("%+v, want %+v at %v", p, want, writtenAt(i))
		}
		i++
	}
	if i != len(written) {
		t.Errorf("%d packets, want %d", i, len(written))
	}
}

// The blocks and options follow the specification, and the Reader passes
// over.
func TestWrittenOptions(t *testing.T) {
	var file bytes.Buffer
	write(t, &file)
	var got []string
	options := func(b []byte) string {
		var all []string
		for {
			code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
			if code == 0 {
				if len(b) != 4 || n != 0 {
					t.Errorf("options end with % x", b)
				}
				return strings.Join(all, " ")
			}
			all = append(all, fmt.Sprintf("%d=%q", code, b[4:4+n]))
			b = b[4+(n+3)&^3:]
		}
	}
	for b := file.Bytes(); len(b) > 0; {
		kind, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		body := b[8 : n-4]
		switch b = b[n:]; kind {
		case 0x0a0d0d0a:
			got = append(got, fmt.Sprintf("section % x %s", body[:16], options(body[16:])))
		case 1:
			got = append(got, fmt.Sprintf("interface % x %s", body[:8], options(body[8:])))
		case 6:
			captured := (binary.LittleEndian.Uint32(body[12:]) + 3) &^ 3
			got = append(got, fmt.Sprintf("packet of %d %s", binary.LittleEndian.Uint32(body), options(body[20+captured:])))
		default:
			t.Errorf("a block of type %d", kind)
		}
	}
	want := []string{
		`section 4d 3c 2b 1a 01 00 00 00 ff ff ff ff ff ff ff ff 4="weir test"`,
		`interface 01 00 00 00 ff ff 00 00 2="eth0" 9="\t"`,
		`packet of 0 2="\x01\x00\x00\x00" 7="\x02\x01\x00\x00\x00\x00\x00\x00\x00" 1="blocked by feed"`,
		`interface 01 00 00 00 ff ff 00 00 2="eth1" 9="\t"`,
		`packet of 1 2="\x02\x00\x00\x00" 7="\x02\x02\x00\x00\x00\x00\x00\x00\x00" 1="monitored"`,
		`packet of 0 2="\x01\x00\x00\x00" 7="\x02\x01\x00\x00\x00\x00\x00\x00\x00" 1=""`,
		`interface 01 00 00 00 ff ff 00 00 2="" 9="\t"`,
		`packet of 2 2="\x01\x00\x00\x00" 7="\x02\x01\x00\x00\x00\x00\x00\x00\x00" 1="bytes beyond ASCII: é"`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// tcpdump reads it too, and with it whatever goes by libpcap.
func TestWrittenForTcpdump(t *testing.T) {
	tcpdump := lab.Installed(t, "tcpdump")
	path := filepath.Join(t.TempDir(), "test.pcapng")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tcpdump, "-r", path, "-n", "-tt", "--nano").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"1700000000.123456789 IP 192.0.2.1.4000 > 203.0.113.1.53:",
		"1700000000.123456790 IP 192.0.2.1.4000 > 203.0.113.1.54:",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "1700000000."); n != len(written) {
		t.Errorf("%d packets, want %d:\n%s", n, len(written), out)
	}
}

func TestWriterErrors(t *testing.T) {
	for room := range 3 {
		w, err := capture.NewWriter(&errorWriter{room}, "weir")
		if err == nil {
			err = w.Write(written[0].Packet, written[0].Note)
		}
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("room for %d blocks: %v", room, err)
		}
	}
}

package capture_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"weir/control/capture"
	"weir/tests/data"
	"weir/tests/must"
)

// Byte strings from which test packets are put together.
var (
	macs  = unhex("0200000000010200 00000002")
	ipv4  = unhex("450000140000000040fd0000c0000201c6336401")
	ipv6  = unhex("6000000000003b4020010db8000000000000000000000001 20010db8000000000000000000000002")
	frame = slices.Concat(macs, unhex("0800"), ipv4)
	noMAC = make([]byte, 12)
)

var orders = map[string]binary.AppendByteOrder{"little": binary.LittleEndian, "big": binary.BigEndian}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// read returns all packets of a capture, with data of their own, and the error
// that ended it.
func read(content io.Reader) ([]capture.Packet, error) {
	r, err := capture.NewReader("test", content)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var packets []capture.Packet
	for p, err := range r.All() {
		if err != nil {
			return packets, err
		}
		p.Data = bytes.Clone(p.Data)
		packets = append(packets, p)
	}
	return packets, nil
}

// check compares the packets of a capture, and the text of the error that ended
// it, with what is wanted. An empty text wants no error.
func check(t *testing.T, content, wantErr string, file []byte, want ...capture.Packet) {
	t.Helper()
	got, err := read(bytes.NewReader(file))
	if text := fmt.Sprint(err); wantErr == "" && err != nil || wantErr != "" && text != wantErr {
		t.Errorf("%s: error %v, want %q", content, err, wantErr)
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d packets, want %d", content, len(got), len(want))
	}
	for i, w := range want {
		w.Number = i + 1
		if g := got[i]; g.Number != w.Number || !g.Time.Equal(w.Time) || g.Length != w.Length || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("%s: packet\n%+v, want\n%+v", content, g, w)
		}
	}
}

func TestPcap(t *testing.T) {
	for orderName, order := range orders {
		for _, nano := range []bool{false, true} {
			for packing, compress := range compressions {
				at := time.Unix(stampSec, stampNano/1000*1000)
				if nano {
					at = time.Unix(stampSec, stampNano)
				}
				file := compress(t, pcapFile(order, nano, 1, frame, nil, frame[:20]))
				check(t, fmt.Sprintf("%s endian, nano %t, %s", orderName, nano, packing), "", file,
					capture.Packet{Time: at, Data: frame, Length: len(frame)},
					capture.Packet{Time: at},
					capture.Packet{Time: at, Data: frame[:20], Length: 20})
			}
		}
	}
}

func TestPcapng(t *testing.T) {
	for orderName, order := range orders {
		for packing, compress := range compressions {
			f := &ngFile{order: order}
			offset := order.AppendUint64(nil, 100)
			microseconds := uint64(stampSec*1_000_000 + stampNano/1000)
			f.section().
				iface(1, 0).
				block(0x0bad, func([]byte) []byte { return make([]byte, 100_000) }).
				packet(0, microseconds, frame).
				iface(101, 0, slices.Concat(f.option(2, []byte("eth0")...), f.option(9, 9), f.option(0))...).
				packet(1, stampSec*1_000_000_000+stampNano, ipv6).
				obsolete(0, microseconds, frame).
				simple(uint32(len(frame)), frame).
				section().
				iface(1, 20, slices.Concat(f.option(9, 0x80|10), f.option(14, offset...))...).
				packet(0, stampSec<<10|512, frame).
				simple(uint32(len(frame)), frame[:20])
			atMicro := time.Unix(stampSec, stampNano/1000*1000)
			ipFrame := slices.Concat(noMAC, unhex("86dd"), ipv6)
			check(t, orderName+" endian, "+packing, "", compress(t, f.bytes),
				capture.Packet{Time: atMicro, Data: frame, Length: len(frame)},
				capture.Packet{Time: time.Unix(stampSec, stampNano), Data: ipFrame, Length: len(ipFrame)},
				capture.Packet{Time: atMicro, Data: frame, Length: len(frame)},
				capture.Packet{Data: frame, Length: len(frame)},
				capture.Packet{Time: time.Unix(stampSec+100, 500_000_000), Data: frame, Length: len(frame)},
				capture.Packet{Data: frame[:20], Length: len(frame)})
		}
	}
}

// A packet whose timestamp is in no year that JSON can express has no time.
func TestPcapngImpossibleTimes(t *testing.T) {
	f := &ngFile{order: binary.LittleEndian}
	offset := func(seconds int64) []byte {
		return f.option(14, binary.LittleEndian.AppendUint64(nil, uint64(seconds))...)
	}
	year := func(n int) int64 { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC).Unix() }
	f.section().
		iface(1, 0).
		iface(1, 0, offset(year(0))...).
		iface(1, 0, offset(year(9998))...).
		iface(1, 0, offset(math.MinInt64)...).
		packet(0, 1<<63, frame).
		packet(1, 0, frame).
		packet(2, 0, frame).
		packet(3, 0, frame)
	none := capture.Packet{Data: frame, Length: len(frame)}
	last := none
	last.Time = time.Unix(year(9998), 0)
	check(t, "impossible times", "", f.bytes, none, none, last, none)
}

// The two sections of a file may differ in byte order.
func TestPcapngMixedOrder(t *testing.T) {
	little := &ngFile{order: binary.LittleEndian}
	big := &ngFile{order: binary.BigEndian}
	little.section().iface(1, 0).packet(0, 0, frame)
	big.section().iface(1, 0).packet(0, 0, frame)
	want := capture.Packet{Time: time.Unix(0, 0), Data: frame, Length: len(frame)}
	check(t, "little, big, little", "", slices.Concat(little.bytes, big.bytes, little.bytes), want, want, want)
}

func TestFraming(t *testing.T) {
	cooked := func(protocol string) []byte { return unhex("0000 0001 0006 020000000001 0000" + protocol) }
	cooked2 := func(protocol string) []byte { return unhex(protocol + "0000 00000002 0001 00 06 020000000001 0000") }
	vlan := slices.Concat(unhex("0064 86dd"), ipv6)
	llc := unhex("424203 0000000000")
	long := make([]byte, 2000)
	for _, c := range []struct {
		name         string
		link         uint32
		packet       []byte
		etherType    string // empty: the packet is a frame
		payload      []byte
		headerCutOff bool
	}{
		{name: "Ethernet", link: 1, packet: frame},
		{name: "Ethernet with frame check sequence", link: 0x50000001, packet: frame},
		{name: "raw IPv4", link: 101, packet: ipv4, etherType: "0800", payload: ipv4},
		{name: "raw IPv6", link: 101, packet: ipv6, etherType: "86dd", payload: ipv6},
		{name: "raw IPv6 of BSD", link: 12, packet: ipv6, etherType: "86dd", payload: ipv6},
		{name: "raw IPv4 of OpenBSD", link: 14, packet: ipv4, etherType: "0800", payload: ipv4},
		{name: "raw, neither version", link: 101, packet: llc[3:], etherType: "0800", payload: llc[3:]},
		{name: "raw, nothing", link: 101, etherType: "0800"},
		{name: "IPv4", link: 228, packet: ipv4, etherType: "0800", payload: ipv4},
		{name: "IPv4 by name only", link: 228, packet: ipv6, etherType: "0800", payload: ipv6},
		{name: "IPv6", link: 229, packet: ipv6, etherType: "86dd", payload: ipv6},
		{name: "cooked", link: 113, packet: append(cooked("0800"), ipv4...), etherType: "0800", payload: ipv4},
		{name: "cooked VLAN", link: 113, packet: append(cooked("8100"), vlan...), etherType: "8100", payload: vlan},
		{name: "cooked ARP, no payload", link: 113, packet: cooked("0806"), etherType: "0806"},
		{name: "cooked 802.2", link: 113, packet: append(cooked("0004"), llc...), etherType: "0008", payload: llc},
		{name: "cooked 802.2, long", link: 113, packet: append(cooked("0004"), long...), etherType: "05dc", payload: long},
		{name: "cooked, cut off", link: 113, packet: cooked("0800")[:15], headerCutOff: true},
		{name: "cooked 2", link: 276, packet: append(cooked2("86dd"), ipv6...), etherType: "86dd", payload: ipv6},
		{name: "cooked 2 VLAN", link: 276, packet: append(cooked2("88a8"), vlan...), etherType: "88a8", payload: vlan},
		{name: "cooked 2, cut off", link: 276, packet: cooked2("0800")[:19], headerCutOff: true},
	} {
		want := c.packet
		if c.etherType != "" {
			want = slices.Concat(noMAC, unhex(c.etherType), c.payload)
		} else if c.headerCutOff {
			want = nil
		}
		packet := capture.Packet{Time: time.Unix(stampSec, stampNano), Data: want, Length: len(want)}
		// The second packet shows that the first left nothing behind.
		check(t, c.name, "", pcapFile(binary.LittleEndian, true, c.link, c.packet, c.packet), packet, packet)
	}
}

// A packet that was longer on the wire stays so, by the same difference.
func TestLength(t *testing.T) {
	at := time.Unix(stampSec, stampNano)
	wire := func(file []byte, length uint32) []byte {
		binary.LittleEndian.PutUint32(file[24+12:], length)
		return file
	}
	raw := slices.Concat(noMAC, unhex("0800"), ipv4)
	check(t, "Ethernet", "", wire(pcapFile(binary.LittleEndian, true, 1, frame), 1000),
		capture.Packet{Time: at, Data: frame, Length: 1000})
	check(t, "raw", "", wire(pcapFile(binary.LittleEndian, true, 228, ipv4), 1000),
		capture.Packet{Time: at, Data: raw, Length: 1014})
	check(t, "more captured than sent", "", wire(pcapFile(binary.LittleEndian, true, 1, frame), 1),
		capture.Packet{Time: at, Data: frame, Length: len(frame)})
}

func TestRefusals(t *testing.T) {
	le := binary.LittleEndian
	big := pcapFile(le, false, 1, frame, frame)
	le.PutUint32(big[24+16+len(frame)+8:], capture.MaxPacket+1)
	oldVersion := pcapFile(le, false, 1)
	oldVersion[6] = 3
	ng := func() *ngFile { return (&ngFile{order: le}).section() }
	patch := func(f *ngFile, at int, v uint32) []byte {
		le.PutUint32(f.bytes[at:], v)
		return f.bytes
	}
	// Offsets in ng().iface(1, 0).packet(…): section 0, interface 28, packet 48.
	const packet = 48
	good := capture.Packet{Time: time.Unix(stampSec, stampNano/1000*1000), Data: frame, Length: len(frame)}
	for _, c := range []struct {
		name, err string
		file      []byte
		before    []capture.Packet
	}{
		{"named link type", "capture: test: link type IEEE802_11 (105) is not supported", pcapFile(le, false, 105, frame), nil},
		{"numbered link type", "capture: test: link type 9999 is not supported", pcapFile(le, false, 9999), nil},
		{"version", "capture: test: pcap version 2.3 is not supported", oldVersion, nil},
		{"garbage", "capture: test: neither pcap nor pcapng: it begins with 67 61 72 62", []byte("garbage"), nil},
		{"empty", "capture: test: file header: cut short", nil, nil},
		{"oversized packet", "capture: test: packet 2, byte 74: a packet of 262145 bytes, above the limit of 262144", big, []capture.Packet{good}},
		{"pcapng link type", "capture: test: packet 2, byte 148: link type PPP (9) is not supported",
			ng().iface(1, 0).iface(9, 0).packet(0, stampSec*1e6+stampNano/1000, frame).packet(1, 0, frame).bytes, []capture.Packet{good}},
		{"pcapng byte order", "capture: test: section header: no byte order: 01 02 03 04", patch(ng(), 8, 0x04030201), nil},
		{"pcapng version", "capture: test: section header: pcapng version 2.0 is not supported", patch(ng(), 12, 2), nil},
		{"pcapng no interface", "capture: test: packet 1, byte 28: interface 0 of 0", ng().packet(0, 0, frame).bytes, nil},
		{"pcapng no interface, simple", "capture: test: packet 1, byte 28: interface 0 of 0", ng().simple(0, nil).bytes, nil},
		{"pcapng block length", "capture: test: packet 1, byte 28: a block of 13 bytes", patch(ng().iface(1, 0), 32, 13), nil},
		{"pcapng block too short", "capture: test: packet 1, byte 28: a block too short for its content", patch(ng().iface(1, 0), 32, 16), nil},
		{"pcapng lengths differ", "capture: test: packet 1, byte 28: a block of 20 bytes ends as one of 24", patch(ng().iface(1, 0), 44, 24), nil},
		{"pcapng packet above its block", "capture: test: packet 1, byte 48: a packet of 1000 bytes in a block with 48 left",
			patch(ng().iface(1, 0).packet(0, 0, frame), packet+20, 1000), nil},
		{"pcapng oversized packet", "capture: test: packet 1, byte 48: a packet of 300000 bytes, above the limit of 262144",
			ng().iface(1, 0).packet(0, 0, make([]byte, 300_000)).bytes, nil},
		{"pcapng interfaces", "capture: test: packet 1, byte 1310748: more than 65536 interfaces",
			append(ng().bytes, bytes.Repeat((&ngFile{order: le}).iface(1, 0).bytes, 65537)...), nil},
		{"pcapng clock", "capture: test: packet 1, byte 28: a timestamp resolution of 10^-20 seconds",
			ng().iface(1, 0, (&ngFile{order: le}).option(9, 20)...).bytes, nil},
	} {
		check(t, c.name, c.err, c.file, c.before...)
		if _, err := read(bytes.NewReader(c.file)); strings.Contains(c.err, "link type") != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: errors.Is(%v, ErrUnsupported) is wrong", c.name, err)
		}
	}
}

// A capture that is cut at any byte yields its packets up to there. It ends properly
// only where a packet or a block does.
func TestTruncation(t *testing.T) {
	pcap := pcapFile(binary.LittleEndian, false, 1, frame, frame, frame)
	f := &ngFile{order: binary.BigEndian}
	borders := []int{}
	for _, add := range []func(){
		func() { f.section() },
		func() { f.iface(1, 0, f.option(9, 6)...) },
		func() { f.packet(0, 0, frame) },
		func() { f.simple(uint32(len(frame)), frame) },
	} {
		add()
		borders = append(borders, len(f.bytes))
	}
	step := 16 + len(frame)
	for _, c := range []struct {
		name    string
		file    []byte
		borders []int
	}{
		{"pcap", pcap, []int{24, 24 + step, 24 + 2*step, 24 + 3*step}},
		{"pcapng", f.bytes, borders},
		// A compressed stream has no end but its own.
		{"gzip", compressions["gzip"](t, pcap), nil},
		{"zstd", compressions["zstd"](t, pcap), nil},
	} {
		whole, err := read(bytes.NewReader(c.file))
		if err != nil {
			t.Fatal(c.name, err)
		}
		for n := range c.file {
			got, err := read(bytes.NewReader(c.file[:n]))
			if wantEnd := slices.Contains(c.borders, n); wantEnd && err != nil || !wantEnd && !errors.Is(err, capture.ErrTruncated) {
				t.Errorf("%s cut to %d bytes: error %v", c.name, n, err)
			}
			for i, p := range got {
				if !bytes.Equal(p.Data, whole[i].Data) {
					t.Errorf("%s cut to %d bytes: packet %d is % x", c.name, n, p.Number, p.Data)
				}
			}
		}
	}
	_, err := read(bytes.NewReader(pcap[:len(pcap)-1]))
	if want := fmt.Sprintf("capture: test: packet 3, byte %d: cut short", 24+2*step); fmt.Sprint(err) != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestReadError(t *testing.T) {
	disk := errors.New("disk on fire")
	file := pcapFile(binary.LittleEndian, false, 1, frame, frame)
	for n := range file {
		src := io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(disk))
		if _, err := read(src); !errors.Is(err, disk) || errors.Is(err, capture.ErrTruncated) {
			t.Errorf("after %d bytes: error %v", n, err)
		}
	}
	got, err := read(iotest.OneByteReader(bytes.NewReader(file)))
	if err != nil || len(got) != 2 {
		t.Errorf("byte by byte: %d packets, %v", len(got), err)
	}
}

func TestEndIsFinal(t *testing.T) {
	r, err := capture.NewReader("test", bytes.NewReader(pcapFile(binary.LittleEndian, false, 1)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Next(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for packing, compress := range compressions {
		path := filepath.Join(dir, packing)
		must.Write(t, path, compress(t, pcapFile(binary.LittleEndian, false, 1, frame)))
		r, err := capture.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := r.Next(); err != nil || !bytes.Equal(p.Data, frame) {
			t.Errorf("%s: packet %+v, error %v", packing, p, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := capture.Open(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}

	f, err := os.Open(filepath.Join(dir, "gzip"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func(stdin *os.File) { os.Stdin = stdin }(os.Stdin)
	os.Stdin = f
	r, err := capture.Open("-")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(); err != nil {
		t.Errorf("standard input: %v", err)
	}
}

// Reading must not cost an allocation a packet.
func TestNextAllocates(t *testing.T) {
	packets := slices.Repeat([][]byte{append(make([]byte, 16), ipv4...)}, 2000)
	r, err := capture.NewReader("test", bytes.NewReader(pcapFile(binary.LittleEndian, false, 113, packets...)))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// TestCorpus reads every capture of the data directory. The directory's index
// says how many packets the single captures hold.
func TestCorpus(t *testing.T) {
	dir := data.Dir(t)
	index, err := os.ReadFile(filepath.Join(dir, "pcap", "INDEX.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]int)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` .*?([0-9]+) pkts").FindAllStringSubmatch(string(index), -1) {
		want[m[1]], err = strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
	}
	// The archives' numbers are without the link types that are refused, and
	// were compared with libpcap's file by file.
	want["pcap/features-dev.tar.gz"] = 8555
	want["malformed/malformed-dev.tar.gz"] = 6100

	// Errors that are no refusals, by the file's base name.
	damaged := map[string]string{
		"bug-1450-04_tls_DER-incomplete-header.pcap": "packet 7, byte 5035: a packet of 4325376 bytes, above the limit of 262144",
		"cfgs_default_pcap_fuzz-2021-10-13.pcap":     "pcap version 2.0 is not supported",
	}
	got := make(map[string]int)
	files, refused := 0, 0
	err = data.Files(dir, func(name string, content io.Reader) error {
		files++
		packets, err := read(content)
		if text, ok := damaged[filepath.Base(name)]; ok {
			if err == nil || !strings.HasSuffix(err.Error(), text) {
				t.Errorf("%s: error %v, want %s", name, err, text)
			}
			delete(damaged, filepath.Base(name))
		} else if errors.Is(err, errors.ErrUnsupported) {
			refused++
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range packets {
			if p.Length < len(p.Data) {
				t.Errorf("%s: packet %d: %d of %d bytes captured", name, p.Number, len(p.Data), p.Length)
			}
		}
		if i := strings.Index(name, ".tar.gz/"); i >= 0 {
			name = name[:i+len(".tar.gz")]
		}
		got[name] += len(packets)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("packets\n%v, want\n%v", got, want)
	}
	if files != 745 || refused != 154 || len(damaged) != 0 {
		t.Errorf("%d captures, %d with refused link types, want 745 and 154; %v not seen", files, refused, damaged)
	}
}

func FuzzReader(f *testing.F) {
	for _, compress := range compressions {
		for _, order := range orders {
			f.Add(compress(f, pcapFile(order, false, 113, append(make([]byte, 16), ipv4...), frame)))
			ng := &ngFile{order: order}
			ng.section().iface(1, 40, ng.option(9, 9)...).packet(0, 1e18, frame).
				iface(276, 0, ng.option(9, 0xa0)...).obsolete(1, 1<<40, ipv6).simple(34, frame)
			f.Add(compress(f, ng.bytes))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := capture.NewReader("fuzz", bytes.NewReader(content))
		if err != nil {
			return
		}
		defer r.Close()
		count := 0
		for p, err := range r.All() {
			if err != nil {
				break
			}
			count++
			if p.Number != count || p.Length < len(p.Data) || len(p.Data) > capture.MaxPacket+14 {
				t.Fatalf("packet %d: number %d, %d of %d bytes captured", count, p.Number, len(p.Data), p.Length)
			}
		}
		if _, err := r.Next(); err == nil {
			t.Fatal("a packet after the end")
		}
	})
}

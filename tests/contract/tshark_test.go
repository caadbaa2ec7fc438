package contract

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/capture"
	"weir/filter/packet"
	"weir/tests/data"
	"weir/tests/lab"
	"weir/tests/long"
)

// TestParserAgainstTshark compares the source address of the outermost IP header with
// what tshark finds, over every packet of every capture that has VLAN tags, PPPoE or MPLS
// before that header.
func TestParserAgainstTshark(t *testing.T) {
	long.Only(t, "decodes many captures with tshark")
	lab.Tool(t, "tshark")
	encapsulated := taggedFrames(t)
	path := filepath.Join(t.TempDir(), "tagged.pcapng")
	writeCapture(t, path, encapsulated)
	found := dissect(t, path)
	if len(found) != len(encapsulated) {
		t.Fatalf("tshark decodes %d packets of %d", len(found), len(encapsulated))
	}
	seen := make(map[string]int)
	count := func(kind, headers string) { seen[strings.TrimSpace(kind+" "+headers)]++ }
	compared := map[string]int{"vlan": 0, "pppoes": 0, "mpls": 0}
	for i, f := range encapsulated {
		p, result := packet.Parse(f.data)
		d := found[i]
		mpls := strings.HasSuffix(d.below, "mpls")
		switch {
		case d.foreign:
			count("not followed", "")
		// Labels do not say what is behind them.
		case mpls && !p.HasAddresses && d.length > len(f.data):
			count("longer than its frame behind", d.below)
		case mpls && p.HasAddresses && !d.source.IsValid():
			count("IP only by its header behind", d.below) // and not by a reserved label
		case p.Src != d.source:
			t.Errorf("%s, packet %d (%s): source %v, result %d; tshark finds %v: % x",
				f.capture, f.number, d.below, p.Src, result, d.source, f.data[:min(len(f.data), 80)])
		default:
			count("same behind", d.below)
			for header := range compared {
				if d.source.IsValid() && strings.Contains(d.below, header) {
					compared[header]++
				}
			}
		}
	}
	t.Log(seen)
	for header, n := range compared {
		if n < 50 {
			t.Errorf("only %d packets behind %s were compared", n, header)
		}
	}
	if n := seen["IP only by its header behind mpls"]; n > compared["mpls"]/1000 {
		t.Errorf("%d packets behind MPLS are taken for IP, which tshark does not do", n)
	}
}

// taggedFrames reads the packets of all captures whose first EtherType is neither of IP nor
// of ARP. Those that were captured in part get zeros for the rest: the parser takes no
// packet behind MPLS labels that is longer than its frame.
func taggedFrames(t *testing.T) (all []frame) {
	t.Helper()
	data.Captures(t, func(name string, r *capture.Reader) {
		for p, err := range r.All() {
			if err != nil {
				return
			}
			if len(p.Data) < 14 || slices.Contains([]uint16{0x800, 0x806, 0x86dd}, binary.BigEndian.Uint16(p.Data[12:])) {
				continue
			}
			whole := make([]byte, max(len(p.Data), min(p.Length, 1<<16-1)))
			copy(whole, p.Data)
			all = append(all, frame{name, p.Number, whole})
		}
	})
	return all
}

func writeCapture(t *testing.T, path string, frames []frame) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buffered := bufio.NewWriter(file)
	w, err := capture.NewWriter(buffered, "weir")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		p := capture.Packet{Data: f.data, Length: len(f.data), Time: time.Unix(int64(i), 0)}
		if err := w.Write(p, capture.Note{Interface: "eth0"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := buffered.Flush(); err != nil {
		t.Fatal(err)
	}
}

// dissection has the fields that tshark finds in a packet.
type dissection struct {
	below   string     // the headers between Ethernet and the outermost IP header
	source  netip.Addr // in that header, invalid if there is none
	length  int        // of the packet, by that header
	foreign bool       // among the headers below are others than VLAN tags, PPPoE and MPLS
}

func dissect(t *testing.T, path string) (all []dissection) {
	t.Helper()
	// Independent of one another: without names, reassembly and what a user has configured.
	cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", path, "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE",
		"-T", "fields", "-E", "occurrence=f", "-e", "frame.protocols", "-e", "ip.src", "-e", "ip.len", "-e", "ipv6.src", "-e", "ipv6.plen")
	cmd.Env = append(os.Environ(), "WIRESHARK_CONFIG_DIR="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		field := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(field) != 5 {
			t.Fatalf("tshark prints %q", line)
		}
		d, err := dissectionOf(field[0], field[1:3], field[3:5])
		if err != nil {
			t.Fatalf("tshark prints %q: %v", line, err)
		}
		all = append(all, d)
	}
	return all
}

// dissectionOf reads the names of a packet's headers, from the outermost on, and the
// source and the length of its first IPv4 and its first IPv6 header.
func dissectionOf(protocols string, v4, v6 []string) (d dissection, err error) {
	var below []string
	for p := range strings.SplitSeq(protocols, ":") {
		switch p {
		case "eth", "ethertype":
			d.foreign = d.foreign || p == "eth" && len(below) > 0 // Ethernet over MPLS
			continue
		case "vlan", "ieee8021ad", "pppoes", "ppp", "mpls":
			below = append(below, p)
			continue
		case "ip", "ipv6":
			ip, header := v4, 0
			if p == "ipv6" {
				ip, header = v6, 40
			}
			d.below = strings.Join(below, " ")
			if ip[0] == "" {
				return d, nil
			}
			if d.length, err = strconv.Atoi(ip[1]); err != nil {
				return d, err
			}
			d.length += header
			d.source, err = netip.ParseAddr(ip[0])
			return d, err
		}
		below = append(below, p)
		d.foreign = true
	}
	d.below = strings.Join(below, " ")
	return d, nil
}

package daemon

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/wait"
)

// Two collectors of sFlow read the same numbers of packets and bytes as weir has dropped:
// exactly where all are reported, else within the error of sampling. They read the
// counters of interfaces, too.
func TestSFlow(t *testing.T) {
	t.Parallel()
	sfcapd, nfdump, sfacctd := lab.Tool(t, "sfcapd"), lab.Tool(t, "nfdump"), lab.Tool(t, "sfacctd")
	h := newHost(t)
	h.write("one.txt", []byte("198.51.100.0/24\n2001:db8:1::/48\n"))
	one, two := lab.FreePort(t), lab.FreePort(t)
	const sampling = 8
	h.configure(h.B.Iface, `
lists: {one: {sources: [{file: %s}], interval: 24h}}
export:
  interval: 1s
  collectors:
    sfcapd: {sflow: "udp://127.0.0.1:%d"}
    sfacctd: {sflow: "udp://127.0.0.1:%d", sampling: %d}
`, h.path("one.txt"), one, two, sampling)
	flows := h.path("flows")
	if err := os.Mkdir(flows, 0o700); err != nil {
		t.Fatal(err)
	}
	collector := serve(t, sfcapd, "-w", flows, "-b", "127.0.0.1", "-p", strconv.Itoa(one), "-t", "3600", "-P", h.path("sfcapd.pid"))
	output, counters := h.path("sfacctd.csv"), h.path("counters.json")
	h.write("sfacctd.conf", fmt.Appendf(nil, "daemonize: false\nsfacctd_ip: 127.0.0.1\nsfacctd_port: %d\nsfacctd_renormalize: true\nplugins: print\n"+
		"aggregate: src_host\nprint_refresh_time: 1\nprint_output: csv\nprint_output_file: %s\nprint_output_file_append: true\nsfacctd_counter_file: %s\n", two, output, counters))
	plugin := serve(t, sfacctd, "-f", h.path("sfacctd.conf"))
	listens(t, one)
	listens(t, two)
	plugin.untilPlugin()

	d := h.start(releases[0])
	tx := h.A.Sender(t)
	var frames [][]byte
	for n := range 40 {
		src := netip.AddrFrom4([4]byte{198, 51, 100, byte(n)})
		switch n % 4 {
		case 1:
			src = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", n))
		case 2:
			src = netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) // passes
		}
		frames = append(frames, frameOf(h.Lab, listedKind, from(src)))
	}
	const sent, dropped = 1000, 750
	for n := range sent {
		if err := tx.SendAll(frames[n%len(frames)]); err != nil {
			t.Fatal(err)
		}
		if n%50 == 49 {
			time.Sleep(20 * time.Millisecond) // faster than 10,000 in a second, and they are sampled
		}
	}
	h.untilMetric(t, `weir_export_records_total{collector="sfcapd",outcome="lost"}`, 0)
	bytes := h.untilDropped(t, dropped).DroppedBytes
	d.stop() // which sends the last samples
	listens(t, one)
	collector.end()

	out, err := exec.Command(nfdump, "-R", flows, "-q", "-N", "-o", "fmt:%sa|%in|%out|%pkt|%byt").CombinedOutput()
	if err != nil {
		t.Fatalf("nfdump: %v\n%s", err, out)
	}
	var counted, octets uint64
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), "|")
		if len(f) != 5 {
			continue
		}
		if !strings.HasPrefix(f[0], "198.51.100.") && !strings.HasPrefix(f[0], "2001:db8:1:") {
			t.Errorf("%s was not dropped", f[0])
		}
		counted += number(t, f[3])
		octets += number(t, f[4])
	}
	const checksum = 4 // of a frame, which sFlow counts
	if counted != dropped || octets != bytes+checksum*dropped {
		t.Errorf("sfcapd has %d packets of %d bytes; weir dropped %d of %d\n%s", counted, octets, dropped, bytes, out)
	}

	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		text, _ := os.ReadFile(output) // it is not there at first
		counted = 0
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.TrimSpace(line), ","); len(f) == 3 && f[0] != "SRC_IP" {
				counted += number(t, f[1])
			}
		}
		if math.Abs(float64(counted)-dropped) < 5*math.Sqrt(dropped*(sampling-1)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("sfacctd has %d packets, weir dropped %d\n%s", counted, dropped, text)
		}
	}
	want := fmt.Sprintf(`"ifInDiscards": %d,`, dropped)
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		text, _ := os.ReadFile(counters)
		if strings.Contains(string(text), want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s in\n%s", want, text)
		}
	}
}

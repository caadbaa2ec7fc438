// Picture makes the pictures in the README: it runs weir between two network
// namespaces, sends traffic for half a minute, and draws the terminal that weir top
// writes to and the page of the console. It needs root, tmux and chromium:
//
//	GOWORK=$PWD/tests/modules.work go run ./tests/browser/picture docs/images/top.svg docs/images/console.png
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
	"weir/tests/binary"
)

// The terminal's size.
const (
	columns = 92
	rows    = 26
)

const (
	watched = 40 * time.Second // until the screen is taken
	iface   = "eth0"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: picture TOP.svg CONSOLE.png")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(top, console string) (err error) {
	p, err := playground.New("weir-picture")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := rename(&p.B); err != nil {
		return err
	}
	dir := filepath.Join(os.TempDir(), "weir-picture") // which the picture shows
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	screen, err := record(p, dir, console)
	if err != nil {
		return err
	}
	return os.WriteFile(top, draw(parse(screen)), 0o644)
}

// rename renames the filtering end to the name that the documentation uses.
func rename(e *playground.End) error {
	err := e.In(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(loopback) // for the console
		}
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(e.Iface)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, iface), netlink.LinkSetUp(link))
	})
	e.Iface = iface
	return err
}

// record returns what weir top shows, with escape sequences, and draws the console.
func record(p *playground.Playground, dir, console string) (_ string, err error) {
	if err := binary.Build(dir, "weir", "weir"); err != nil {
		return "", err
	}
	command := filepath.Join(dir, "weir")
	config := filepath.Join(dir, "weir.yaml")
	for name, text := range map[string]string{
		config:                             fmt.Sprintf(configuration, iface, p.B.Netns, dir),
		filepath.Join(dir, "drop.txt"):     "203.0.113.0/24\n2001:db8:bad::/48\n",
		filepath.Join(dir, "scanners.txt"): scanners(),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	weir := exec.Command(command, "run", "-c", config)
	weir.Stderr = os.Stderr
	if err := p.B.In(weir.Start); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, weir.Process.Signal(unix.SIGTERM), weir.Wait())
		_ = os.Remove("/sys/fs/bpf/" + p.B.Netns) // empty, or never made
	}()
	ctx, stop := context.WithTimeout(context.Background(), watched)
	defer stop()
	sent := make(chan error, 1)
	go func() { sent <- send(ctx, p) }()

	server := "weir-picture-" + strconv.Itoa(os.Getpid())
	tmux := func(args ...string) *exec.Cmd {
		return exec.Command("tmux", append([]string{"-L", server}, args...)...)
	}
	wait(ctx, 3*time.Second) // for the socket
	page, err := openConsole(context.Background(), command, filepath.Join(dir, "weir.sock"), p.B)
	if err != nil {
		return "", err
	}
	defer page.close()
	start := tmux("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows),
		command+" top --socket "+filepath.Join(dir, "weir.sock"))
	start.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor")
	if out, err := start.CombinedOutput(); err != nil {
		return "", fmt.Errorf("tmux: %w: %s", err, out)
	}
	defer func() { err = errors.Join(err, tmux("kill-server").Run()) }()
	wait(ctx, watched-8*time.Second)
	err = page.ask(fmt.Sprintf("tcp 203.0.113.7:4000 > %s:25", p.B.IPv4))
	if err == nil {
		wait(ctx, 2*time.Second)
		err = page.draw(console)
	}
	screen, failed := tmux("capture-pane", "-e", "-p").Output()
	stop()
	return string(screen), errors.Join(err, failed, <-sent)
}

const configuration = `interfaces: [{name: %s, required: true}]
failsafe: {ports: [tcp/22]}
state_dir: ""
keep: false
pins: /sys/fs/bpf/%s
api: {socket: "%[3]s/weir.sock"}
console: {listen: ` + consoleAddress + `}
lists:
  drop: {sources: [{file: "%[3]s/drop.txt"}]}
  scanners: {sources: [{file: "%[3]s/scanners.txt"}]}
  office: {action: allow}
trackers:
  - {key: src, threshold: 1%%}
  - {key: src/24, threshold: 3kpps, action: limit, limit: 1kpps}
`

// scanners returns the entries of a list.
func scanners() string {
	var b strings.Builder
	for n := range 200_000 {
		fmt.Fprintln(&b, netip.AddrFrom4([4]byte{100, 64 + byte(n>>16), byte(n >> 8), byte(n)}))
	}
	return b.String()
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sender sends packets of a kind with a weight: what part of all they are.
type sender struct {
	weight float64
	source func() netip.Addr
	proto  layers.IPProtocol
	port   uint16
	bytes  int
}

// send sends a mix of traffic, up to 22,000 packets a second, until the context ends.
func send(ctx context.Context, p *playground.Playground) error {
	fd, err := p.A.Socket(0, func(int) error { return nil })
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r := rand.New(rand.NewPCG(1, 2))
	// The sources of welcome traffic follow Zipf's law.
	zipf := rand.NewZipf(r, 1.3, 4, 4000)
	welcome := func() netip.Addr {
		n := uint16(zipf.Uint64())
		return netip.AddrFrom4([4]byte{198, 18 + byte(n>>8), byte(n), byte(37*n + 11)})
	}
	mix := []sender{
		{0.44, welcome, layers.IPProtocolTCP, 443, 900},
		{0.12, func() netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(r.Uint32())}) }, layers.IPProtocolTCP, 25, 60},
		{0.16, func() netip.Addr { return netip.AddrFrom4([4]byte{100, 64, byte(r.Uint32()), byte(r.Uint32())}) }, layers.IPProtocolTCP, 23, 60},
		{0.24, func() netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, 23}) }, layers.IPProtocolUDP, 53, 512},
		{0.04, func() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 10}) }, layers.IPProtocolTCP, 22, 120},
	}
	frames := make([][]byte, 20_000)
	for i := range frames {
		at := r.Float64()
		s := mix[len(mix)-1]
		for _, m := range mix {
			if at -= m.weight; at < 0 {
				s = m
				break
			}
		}
		if frames[i], err = s.frame(p, r); err != nil {
			return err
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// More and less, so that the curve is one.
		for range 70 + int(40*math.Sin(float64(i)/45_000)) {
			if _, err := unix.Write(fd, frames[i%len(frames)]); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send: %w", err)
			}
			i++
		}
	}
}

func (s sender) frame(p *playground.Playground, r *rand.Rand) ([]byte, error) {
	ip := &layers.IPv4{Version: 4, TTL: 57, Protocol: s.proto, SrcIP: net.IP(s.source().AsSlice()), DstIP: net.IP(p.B.IPv4.AsSlice())}
	port := 1024 + uint16(r.Uint32N(60_000))
	var transport gopacket.SerializableLayer
	if s.proto == layers.IPProtocolUDP {
		u := &layers.UDP{SrcPort: layers.UDPPort(s.port), DstPort: layers.UDPPort(port)}
		_ = u.SetNetworkLayerForChecksum(ip) // never fails with IP
		transport = u
	} else {
		t := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: layers.TCPPort(s.port), ACK: true, Window: 512}
		_ = t.SetNetworkLayerForChecksum(ip)
		transport = t
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: p.A.MAC, DstMAC: p.B.MAC, EthernetType: layers.EthernetTypeIPv4},
		ip, transport, gopacket.Payload(make([]byte, max(s.bytes-54, 0))))
	return b.Bytes(), err
}

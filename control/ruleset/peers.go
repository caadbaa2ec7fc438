package ruleset

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weir/filter/key"
	"weir/loader/netif"
)

// The files that say whom a host talks to.
const (
	resolvFile   = "/etc/resolv.conf"
	upstreamFile = "/run/systemd/resolve/resolv.conf" // where resolvFile names a resolver of this host
	sessionsDir  = "/run/systemd/sessions"
)

const (
	tcp, udp = 6, 17
	dns      = 53
)

// networkPeers returns the peers of a namespace's interfaces that match: own addresses,
// connected networks and gateways. own are the namespace's addresses.
func networkPeers(netns string, match func(name string) bool) (peers []Peer, own []netip.Addr, err error) {
	n, err := netif.NetworkOf(netns, match)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range n.Own {
		peers = append(peers, Peer{fmt.Sprintf("this host's address %v", a), key.Destination(whole(a))})
	}
	for _, p := range n.Local {
		a, network := p.Addr(), p.Masked()
		if network.Bits() < a.BitLen() {
			peers = append(peers, Peer{fmt.Sprintf("the connected network %v", network), key.Source(network)})
		}
		peers = append(peers, Peer{fmt.Sprintf("this host's address %v", a), key.Source(whole(a))})
	}
	for _, a := range n.Gateways {
		peers = append(peers, toOwn(fmt.Sprintf("the gateway %v", a), key.Tuple{Src: a}, 0, n.Own)...)
	}
	return peers, n.Own, nil
}

// resolvers returns the name servers of the host that its files name, whose answers go to its own
// addresses.
func resolvers(file, upstream string, own []netip.Addr) (peers []Peer) {
	all := nameServers(file)
	if slices.ContainsFunc(all, netip.Addr.IsLoopback) {
		all = append(all, nameServers(upstream)...)
	}
	for _, a := range all {
		if a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		for _, proto := range []uint8{udp, tcp} {
			from := key.Tuple{Src: a, Proto: proto, HasPorts: true, SrcPort: dns}
			peers = append(peers, toOwn(fmt.Sprintf("the resolver %v", a), from, key.FieldProto|key.FieldSrcPort, own)...)
		}
	}
	return peers
}

// serverPeers returns the servers of something, as in "list drop".
func serverPeers(of string, servers, own []netip.Addr) (peers []Peer) {
	for _, a := range servers {
		if a = a.Unmap(); !a.IsLoopback() {
			peers = append(peers, toOwn(fmt.Sprintf("the server %v of %s", a, of), key.Tuple{Src: a, Proto: tcp}, key.FieldProto, own)...)
		}
	}
	return peers
}

// logins returns the hosts from which users are logged in, by the files of their sessions. They have
// proved who they are: a connection alone could be anybody's, who would be spared that way.
func logins(dir string, own []netip.Addr) (peers []Peer) {
	files, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is valid
	var seen []netip.Addr
	for _, file := range files {
		for line := range linesOf(file) {
			host, ok := strings.CutPrefix(line, "REMOTE_HOST=")
			if !ok {
				continue
			}
			a, err := netip.ParseAddr(host)
			if a = a.Unmap().WithZone(""); err != nil || a.IsLoopback() || slices.Contains(seen, a) {
				continue
			}
			seen = append(seen, a)
			peers = append(peers, toOwn(fmt.Sprintf("the login from %v", a), key.Tuple{Src: a, Proto: tcp}, key.FieldProto, own)...)
		}
	}
	return peers
}

// ConnectionPeer returns the peer of a TCP connection to this host, as in the variable
// SSH_CONNECTION: the address and port of the client, then of the server. It is
// false for one within the host.
func ConnectionPeer(what, text string) (Peer, bool) {
	f := strings.Fields(text)
	if len(f) != 4 {
		return Peer{}, false
	}
	client, err1 := netip.ParseAddr(f[0])
	server, err2 := netip.ParseAddr(f[2])
	from, err3 := strconv.ParseUint(f[1], 10, 16)
	to, err4 := strconv.ParseUint(f[3], 10, 16)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return Peer{}, false
		}
	}
	client, server = client.Unmap().WithZone(""), server.Unmap().WithZone("")
	if client.IsLoopback() || client.Is4() != server.Is4() {
		return Peer{}, false
	}
	t := key.Tuple{Src: client, Dst: server, Proto: tcp, HasPorts: true, SrcPort: uint16(from), DstPort: uint16(to)}
	return Peer{fmt.Sprintf("%s from %v", what, client), t.Key()}, true
}

// SSHConnection returns the variable SSH_CONNECTION of this process, or of the next
// ancestor that has it: sudo does not pass it on.
func SSHConnection() string {
	const name = "SSH_CONNECTION"
	if c := os.Getenv(name); c != "" {
		return c
	}
	for pid := os.Getppid(); pid > 1; {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			return ""
		}
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if c, ok := strings.CutPrefix(variable, name+"="); ok {
				return c
			}
		}
		parent := 0
		for line := range linesOf(fmt.Sprintf("/proc/%d/status", pid)) {
			if n, ok := strings.CutPrefix(line, "PPid:"); ok {
				parent, _ = strconv.Atoi(strings.TrimSpace(n))
			}
		}
		pid = parent
	}
	return ""
}

// toOwn returns the peer of packets from an address to each own address of its
// family, with these fields.
func toOwn(what string, t key.Tuple, fields key.Fields, own []netip.Addr) (peers []Peer) {
	for _, a := range own {
		if a.Is4() != t.Src.Is4() {
			continue
		}
		t.Dst = a
		s := key.Shape{Fields: fields, SrcBits: uint8(t.Src.BitLen()), DstBits: uint8(a.BitLen())}
		if t.Src.Is6() {
			s.Fields |= key.FieldV6
		}
		k, _ := s.Of(t)
		peers = append(peers, Peer{what, k})
	}
	return peers
}

func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func nameServers(file string) (all []netip.Addr) {
	for line := range linesOf(file) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			all = append(all, a.Unmap().WithZone(""))
		}
	}
	return all
}

// linesOf iterates over the lines of a small file. One that cannot be read has none.
func linesOf(file string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(file)
		if err != nil {
			return
		}
		defer f.Close()
		for lines := bufio.NewScanner(io.LimitReader(f, 64<<10)); lines.Scan(); {
			if !yield(lines.Text()) {
				return
			}
		}
	}
}

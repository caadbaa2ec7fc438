package demo

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"

	"weir/control/config"
	"weir/control/list"
	"weir/control/list/listfile"
)

// Sizes of the generated lists other than the addresses.
const (
	prefixes4 = 20_000
	prefixes6 = 5_000
	flows     = 5_000
	allowed   = 64    // of the listed sources
	later     = 1_000 // addresses added with the second generation
)

// lists are the list files of the demo, and their contents.
type lists struct {
	files     []string // of block lists
	lenient   bool
	allowed   string       // the file of the allow list; "": none
	block     list.Entries // of all block lists
	allow     []netip.Addr
	blocked   *naive
	addresses string // the file that grows later; "" with a feed
}

// makeLists writes the lists into dir: a feed, or else generated addresses,
// prefixes and flows.
func makeLists(dir string, o Options, r *rand.Rand) (*lists, error) {
	l := &lists{blocked: newNaive()}
	if o.Feed != "" {
		l.files = append(l.files, o.Feed)
		l.lenient = true // accept any feed
	} else {
		l.addresses = filepath.Join(dir, "addresses.txt")
		l.files = append(l.files, l.addresses, filepath.Join(dir, "prefixes.txt"), filepath.Join(dir, "flows.txt"))
		for i, write := range []func(*bufio.Writer, *rand.Rand){
			func(w *bufio.Writer, r *rand.Rand) { writeAddresses(w, r, o.Entries) }, writePrefixes, writeFlows,
		} {
			if err := writeFile(l.files[i], r, write); err != nil {
				return nil, err
			}
		}
		if o.Capture != "" { // otherwise none of its packets would be listed
			file := filepath.Join(dir, "capture.txt")
			l.files = append(l.files, file)
			if err := writeSources(file, o.Capture, r); err != nil {
				return nil, err
			}
		}
	}
	for _, file := range l.files {
		e, _, err := listfile.Load(file, listfile.Options{Lenient: l.lenient})
		if err != nil {
			return nil, err
		}
		l.blocked.add(e)
		l.block.V4 = append(l.block.V4, e.V4...)
		l.block.V6 = append(l.block.V6, e.V6...)
		l.block.Flows = append(l.block.Flows, e.Flows...)
	}
	if l.block.Len() == 0 {
		return nil, fmt.Errorf("%s: the list has no entries", o.Feed)
	}
	if n := len(l.block.V4); n > 0 {
		for range allowed {
			l.allow = append(l.allow, inside4(l.block.V4[r.IntN(n)], r))
		}
		file := filepath.Join(dir, "allowed.txt")
		l.allowed = file
		if err := writeFile(file, r, func(w *bufio.Writer, _ *rand.Rand) {
			for _, a := range l.allow {
				fmt.Fprintln(w, a)
			}
		}); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// grow adds entries to a list that match no further packets of the traffic.
func (l *lists) grow(traffic *traffic, r *rand.Rand) error {
	if l.addresses == "" {
		return nil // a feed belongs to the user
	}
	f, err := os.OpenFile(l.addresses, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for _, a := range l.fresh(traffic, r) {
		fmt.Fprintln(w, a)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// fresh returns addresses to add that match no packet of the traffic.
func (l *lists) fresh(traffic *traffic, r *rand.Rand) (all []netip.Addr) {
	for len(all) < later {
		if a := random4(r); !traffic.sources[a] {
			all = append(all, a)
		}
	}
	return all
}

func writeFile(path string, r *rand.Rand, write func(*bufio.Writer, *rand.Rand)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	write(w, r)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func writeAddresses(w *bufio.Writer, r *rand.Rand, n int) {
	for range n {
		fmt.Fprintln(w, random4(r))
	}
}

func writePrefixes(w *bufio.Writer, r *rand.Rand) {
	for range prefixes4 {
		fmt.Fprintln(w, netip.PrefixFrom(random4(r), 20+r.IntN(11)).Masked())
	}
	for range prefixes6 {
		fmt.Fprintln(w, netip.PrefixFrom(random6(r), 32+8*r.IntN(5)).Masked())
	}
}

// writeSources writes every third source address of a capture.
func writeSources(file, from string, r *rand.Rand) error {
	t, err := readTraffic(from, &lists{blocked: newNaive()})
	if err != nil {
		return err
	}
	return writeFile(file, r, func(w *bufio.Writer, r *rand.Rand) {
		for a := range t.sources {
			if r.IntN(3) == 0 {
				fmt.Fprintln(w, a)
			}
		}
	})
}

func writeFlows(w *bufio.Writer, r *rand.Rand) {
	for range flows {
		src, dst := random4(r), random4(r)
		switch r.IntN(3) {
		case 0:
			fmt.Fprintf(w, "tcp %v:* > %v:443\n", src, dst)
		case 1:
			fmt.Fprintf(w, "udp %v:%d > %v:%d\n", src, 1+r.IntN(65535), dst, 1+r.IntN(65535))
		case 2:
			fmt.Fprintf(w, "tcp [%v]:* > [%v]:22\n", random6(r), random6(r))
		}
	}
}

// random4 returns a unicast address, but none of 198.18.0.0/15, which has the hosts of the demo:
// a prefix that covers one of them would be left out, and its packets would come through.
func random4(r *rand.Rand) netip.Addr {
	for {
		n := r.Uint32()
		if first := n >> 24; first == 0 || first == 127 || first >= 224 || n>>17 == 198<<7|18>>1 {
			continue
		}
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
}

// random6 returns a global unicast address.
func random6(r *rand.Rand) netip.Addr {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	b[0] = 0x20 | b[0]&0x1f // 2000::/3
	return netip.AddrFrom16(b)
}

// inside4 returns an address in a prefix.
func inside4(p list.V4Prefix, r *rand.Rand) netip.Addr {
	n := p.Addr() | r.Uint32()&uint32(1<<(32-p.Bits())-1)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// inside6 returns an address in a prefix.
func inside6(p netip.Prefix, r *rand.Rand) netip.Addr {
	b := p.Addr().As16()
	for i := p.Bits(); i < 128; i++ {
		b[i/8] |= byte(r.Uint32()&1) << (7 - i%8)
	}
	return netip.AddrFrom16(b)
}

// config returns the configuration that filters by the lists.
func (l *lists) config() (*config.Config, error) {
	c := config.Default()
	c.Keep, c.StateDir, c.API.Socket = false, "", ""
	add := func(file string, action config.Action) error {
		n, err := c.AddFile(file, action)
		if err == nil {
			n.Lenient = l.lenient
		}
		return err
	}
	for _, file := range l.files {
		if err := add(file, config.Block); err != nil {
			return nil, err
		}
	}
	if l.allowed != "" {
		if err := add(l.allowed, config.Allow); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Package syncookies answers SYNs by SYN cookies where they come in, before the kernel's network
// stack sees them: see bpf/syncookie.h.
package syncookies

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/stage"
	"weir/filter/hash"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Mode says when SYNs are answered: off, auto (while the queue of a listening socket has no room)
// or on (always).
type Mode string

// The modes.
const (
	Off  Mode = "off"
	Auto Mode = "auto"
	On   Mode = "on"
)

// Modes are the names of all modes.
var Modes = []string{string(Off), string(Auto), string(On)}

// UnmarshalText sets the mode.
func (m *Mode) UnmarshalText(text []byte) error {
	switch of := Mode(text); of {
	case Off, Auto, On:
		*m = of
		return nil
	}
	return fmt.Errorf("%q: want %s", text, strings.Join(Modes, ", "))
}

// On reports whether SYNs are answered.
func (m Mode) On() bool { return m == Auto || m == On }

// Knob is the kernel's own setting, which its cookies for programs depend on, too, by network
// namespace: 0 for none, 1 for those of sockets whose queue has no room, 2 for all.
const Knob = "net.ipv4.tcp_syncookies"

// kernel returns the kernel's setting in the present network namespace.
func kernel() (n int, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_syncookies") // the thread's namespace's
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	return n, err
}

// Obstacle keeps SYNs from being answered as the mode says.
type Obstacle struct {
	Text string
	Mend string // a command, in the interface's network namespace
}

// Find returns what keeps the SYNs of an interface from being answered, nil where nothing does.
func (m Mode) Find(t netif.Target) (o *Obstacle) {
	if !m.On() {
		return nil
	}
	_ = t.In(func(uint64) error {
		n, err := kernel()
		if err != nil || n >= m.want() {
			return nil
		}
		answered := "no SYN is"
		if n == 1 {
			answered = "only SYNs of full queues are"
		}
		o = &Obstacle{fmt.Sprintf("%s answered: %s is %d", answered, Knob, n), fmt.Sprintf("sysctl -w %s=%d", Knob, m.want())}
		return nil
	})
	if network, err := netif.NetworkOf(t.Netns, none); o == nil && err == nil {
		if i, err := t.Find(); err == nil && hidesTags(t, i.Index, network.Trunks) {
			o = &Obstacle{"no SYN is answered: VLAN devices are above it, and tags may be taken off its frames before XDP", "ethtool -K " + t.Iface + " rxvlan off"}
		}
	}
	return o
}

// hidesTags reports whether the answer to a SYN that came by a VLAN might lack its tag: the interface
// is one of those below VLAN devices.
func hidesTags(t netif.Target, index int, trunks []int) bool {
	if !slices.Contains(trunks, index) {
		return false
	}
	d, err := hooks.Inspect(t)
	return err != nil || d.HidesTags()
}

func none(string) bool { return false }

// want returns the least of the kernel's settings with which the mode does what it says.
func (m Mode) want() int {
	switch m {
	case Auto:
		return 1
	case On:
		return 2
	}
	return 0
}

// Check returns why SYNs of an interface cannot be answered; loops says that loops are detected.
func (m Mode) Check(loops bool) error {
	if m.On() && loops {
		return errors.New("loop changes packets before they could be answered: leave one of the two out")
	}
	return nil
}

// Part is the share of programs. An interface has the mode of the first that covers it.
type Part struct {
	engine.BasePart
	Interfaces []stage.At[Mode]

	known map[bpf.WeirCookieAddress]bool // addresses that the programs of a generation have
	of    *loader.Generation
}

// at returns the mode of an interface.
func (p *Part) at(t netif.Target) Mode { return stage.Find(p.Interfaces, t) }

// leastMTU is the least MTU of IPv6, which any interface has that is filtered.
const leastMTU = 1280

// Constants returns those of an interface whose SYNs are answered.
func (p *Part) Constants(t netif.Target, _ loader.Seed) map[string]any {
	mode := p.at(t)
	if !mode.On() || t.Out {
		return nil
	}
	mtu := leastMTU
	if i, err := t.Find(); err == nil {
		mtu = min(max(i.MTU, leastMTU), 1<<16-1)
	}
	return map[string]any{bpf.WeirVarSyncookies: &bpf.WeirCookieConfig{
		Scope: stage.Scope(t.Netns), Mtu: uint16(mtu), On: 1, Always: loader.Flag(mode == On),
	}}
}

// maxAddresses bounds the addresses and interfaces of this host that programs know. SYNs for others are left to
// the kernel.
const maxAddresses = 4096

// Maps returns the memory of CPUs and the addresses of this host.
func (p *Part) Maps(out bool) (map[string]int, error) {
	if out {
		return nil, nil
	}
	return map[string]int{bpf.WeirMapCookieCpus: loader.CPUs(), bpf.WeirMapCookieAddresses: maxAddresses}, nil
}

// Fill does nothing: programs know no address before the first Tick, and leave SYNs to the kernel.
func (p *Part) Fill(*loader.Generation, *hash.Secret) error { return nil }

// How often the addresses of this host are read, and how long programs rely on them: without a
// daemon, an address may go to another host.
const (
	period  = time.Second
	expires = 10 * time.Second
)

// Tick writes the addresses of this host, and the interfaces where SYNs can be answered, for programs.
func (p *Part) Tick(now time.Duration, g *loader.Generation, incoming []stage.Interface) time.Duration {
	if p.of != g {
		p.known, p.of = nil, g
	}
	present := make(map[bpf.WeirCookieAddress]bool)
	networks := make(map[string]netif.Network)
	for _, i := range incoming {
		if !p.at(i.Target).On() {
			continue
		}
		network, known := networks[i.Netns]
		if !known {
			var err error
			if network, err = netif.NetworkOf(i.Netns, none); err != nil {
				continue // the kernel answers
			}
			networks[i.Netns] = network
			for _, a := range network.Own {
				present[addressKey(a, i.Netns)] = true
			}
		}
		if of, err := i.Find(); err == nil && !hidesTags(i.Target, of.Index, network.Trunks) {
			present[bpf.WeirCookieAddress{Addr: [4]uint32{uint32(of.Index)}, Scope: stage.Scope(i.Netns)}] = true
		}
	}
	until := uint64(now + expires)
	for k := range present {
		// Where there is no room, or the generation has just ended, the kernel answers.
		_ = g.Put(bpf.WeirMapCookieAddresses, &k, until)
	}
	for k := range p.known {
		if !present[k] {
			_ = g.Remove(bpf.WeirMapCookieAddresses, &k)
		}
	}
	p.known = present
	return period
}

// addressKey is an address in a network namespace, as programs have it.
func addressKey(a netip.Addr, netns string) bpf.WeirCookieAddress {
	k := bpf.WeirCookieAddress{Addr: engine.Words(a), Scope: stage.Scope(netns), Family: 4}
	if a.Is6() {
		k.Family = 6
	}
	return k
}

// About says when an interface's SYNs are answered.
type About struct {
	Mode Mode `json:"mode"`
}

// About returns what is said of an interface's program, nil where it answers none.
func (p *Part) About(t netif.Target) *About {
	if m := p.at(t); m.On() && !t.Out {
		return &About{m}
	}
	return nil
}

// State has the SYNs that were answered.
type State struct {
	Answered stage.Count `json:"answered"`
	Obstacle string      `json:"obstacle,omitempty"` // that keeps others from being answered
}

// State returns what a program has answered on an interface, nil where it answers no SYN.
func (a *About) State(t netif.Target, s *loader.Stats) *State {
	if a == nil {
		return nil
	}
	state := &State{Answered: count(s)}
	if o := a.Mode.Find(t); o != nil {
		state.Obstacle = o.Text
	}
	return state
}

func count(s *loader.Stats) (n stage.Count) {
	s.Read(func(k loader.Kept) {
		rows := loader.Entries[bpf.WeirCpuRow](k, bpf.WeirMapReasonStats)
		for i := range rows {
			n.Packets += atomic.LoadUint64(&rows[i].Answered.Packets)
			n.Bytes += atomic.LoadUint64(&rows[i].Answered.Bytes)
		}
	})
	return n
}

// Rows describes the answers.
func (a *About) Rows(s *State) []stage.Row {
	if a == nil || s == nil {
		return nil
	}
	text := fmt.Sprintf("%s, %v answered", a.Mode, s.Answered)
	if s.Obstacle != "" {
		text += "; " + s.Obstacle
	}
	return []stage.Row{{Name: "SYN cookies", Text: text}}
}

var answered = &stage.Family{Name: "weir_syncookies_total", Help: "SYNs that were answered by a SYN cookie. They are among the packets that passed.", Counter: true}

// Families are the metrics of SYN cookies.
var Families = []*stage.Family{answered}

// Counted returns the counter of an interface.
func (a *About) Counted(s *loader.Stats) []stage.Sample {
	if a == nil {
		return nil
	}
	return []stage.Sample{{Family: answered, Value: float64(count(s).Packets)}}
}

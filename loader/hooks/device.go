package hooks

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/loader/dispatcher"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Device is an interface as it is without a program of weir's: what decides whether one can be
// attached, and which packets it sees. Inspect reads it and changes nothing.
type Device struct {
	Target   netif.Target
	Kind     string // by the kernel, as in ip -d link; "" for most NICs
	Driver   string
	MTU      int
	Up       bool
	Ethernet bool // frames begin with an Ethernet header
	IP       bool // packets have no link header, or one that the program for TC skips

	Below []string // the interfaces that packets of a bridge, bond or VLAN device come in by
	Peer  *Peer    // of a veth

	Native  Support // the driver runs XDP programs, as it is set up now
	Buffers Support // and takes frames of several buffers

	Channels Channels
	VFs      int // virtual functions that SR-IOV has made of it

	LRO, HardwareGRO, StripsVLAN Offload

	Program *Occupant   // at XDP, not weir's; nil: there is none
	Own     bool        // weir's program is at XDP
	TC      []Neighbour // at tcx and clsact, for incoming packets, but for weir's own
}

// HidesTags reports whether the VLAN tags of packets may lie beside the frames that programs at XDP
// see.
func (d *Device) HidesTags() bool {
	if d.Kind == "veth" {
		return d.Peer == nil || !d.Peer.Here || d.Peer.InsertsVLAN
	}
	return d.StripsVLAN.On
}

// Peer is the other end of a veth.
type Peer struct {
	Name        string
	Here        bool // it is in the same network namespace
	MTU         int
	TxQueues    int // at most so many are in use
	InsertsVLAN bool
}

// Support says whether a driver can do something, as far as the kernel says.
type Support uint8

// What kernels before 6.3 say is Unknown.
const (
	Unknown Support = iota
	No
	Yes
)

// Offload is the state of a feature of a NIC.
type Offload struct{ On, Fixed bool } // Fixed: it cannot be changed

// Channels are the queues of a NIC that are in use, and the most that it has. They are zero
// where the driver does not say.
type Channels struct{ RX, TX, Combined, MaxRX, MaxCombined int }

// Occupant is a program at XDP that is not weir's.
type Occupant struct {
	Text   string // as of `weir run`, where it refuses to replace the program
	Remove string // a line that removes it; "": no line does
	Advice string // beside that
	Behind bool   // it is libxdp's dispatcher, which weir can be one of the programs of
}

// Inspect describes an interface. It fails with netif.ErrNoInterface or netif.ErrNoNetns
// where there is none. Properties that the kernel does not report, or only to a privileged process, are
// left out.
func Inspect(t netif.Target) (*Device, error) {
	d := &Device{Target: t}
	err := t.In(func(inode uint64) error {
		i, err := netif.ByName(inode, t.Iface)
		if err != nil {
			return err
		}
		d.Kind, d.Driver, d.MTU = i.Kind, i.Driver(), i.MTU
		d.Up, d.Ethernet, d.IP = i.RawFlags&unix.IFF_UP != 0, i.HasEthernet(), i.StartsWithIP()
		d.Below = i.Below()
		if i.Kind == "veth" {
			d.inspectPeer(i)
		}
		d.inspectXDP(i)
		d.inspectEthtool(i.Name)
		d.VFs = virtualFunctions(i.Name)
		d.inspectTC(i)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) inspectPeer(i *netif.Iface) {
	peer, err := i.Peer()
	if err != nil {
		return
	}
	d.Peer = &Peer{Name: peer.Name, Here: i.NetNsID < 0, MTU: peer.MTU, TxQueues: peer.NumTxQueues}
	if !d.Peer.Here {
		return
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer e.Close()
	if c, err := e.GetChannels(peer.Name); err == nil {
		d.Peer.TxQueues = int(c.TxCount + c.CombinedCount)
	}
	if all, err := e.FeaturesWithState(peer.Name); err == nil {
		d.Peer.InsertsVLAN = all["tx-vlan-hw-insert"].Active
	}
}

// inspectXDP reads what the driver supports, and which program is there.
func (d *Device) inspectXDP(i *netif.Iface) {
	d.Native, d.Buffers = xdpFeatures(i.Index)
	if i.Xdp == nil || !i.Xdp.Attached {
		return
	}
	id := i.Xdp.ProgId
	if isWeirs(id) {
		d.Own = true
		return
	}
	d.Program = occupantOf(d.Target, i, linkOf(id, i.Index) != 0)
}

// The netdev family of generic netlink, linux/netdev.h.
const (
	netdevGet         = 1
	netdevIndex       = 1
	netdevXDPFeatures = 3

	xdpBasic   = 1 << 0 // NETDEV_XDP_ACT_BASIC
	xdpBuffers = 1 << 5 // NETDEV_XDP_ACT_RX_SG
)

// xdpFeatures asks the kernel what an interface supports of XDP; Linux 6.3 and later say it.
func xdpFeatures(index int) (native, buffers Support) {
	f, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return Unknown, Unknown
	}
	req := nl.NewNetlinkRequest(int(f.ID), 0)
	req.AddData(&nl.Genlmsg{Command: netdevGet, Version: 1})
	req.AddData(nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))))
	answer, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(answer) == 0 || len(answer[0]) < nl.SizeofGenlmsg {
		return Unknown, Unknown
	}
	attributes, err := nl.ParseRouteAttr(answer[0][nl.SizeofGenlmsg:])
	if err != nil {
		return Unknown, Unknown
	}
	for _, a := range attributes {
		if a.Attr.Type == netdevXDPFeatures && len(a.Value) >= 8 {
			bits := binary.NativeEndian.Uint64(a.Value)
			return supports(bits&xdpBasic != 0), supports(bits&xdpBuffers != 0)
		}
	}
	return Unknown, Unknown
}

func supports(yes bool) Support {
	if yes {
		return Yes
	}
	return No
}

// inspectEthtool reads offloads and channels.
func (d *Device) inspectEthtool(name string) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer e.Close()
	if all, err := e.FeaturesWithState(name); err == nil {
		offload := func(name string) Offload {
			f := all[name]
			return Offload{On: f.Active, Fixed: !f.Available || f.NeverChanged}
		}
		d.LRO, d.HardwareGRO, d.StripsVLAN = offload("rx-lro"), offload("rx-gro-hw"), offload("rx-vlan-hw-parse")
	}
	if c, err := e.GetChannels(name); err == nil {
		d.Channels = Channels{int(c.RxCount), int(c.TxCount), int(c.CombinedCount), int(c.MaxRx), int(c.MaxCombined)}
	}
}

// virtualFunctions returns how many SR-IOV has made of an interface of this network namespace,
// as sysfs was mounted in it, or 0.
func virtualFunctions(name string) int {
	text, err := os.ReadFile(filepath.Join("/sys/class/net", name, "device/sriov_numvfs"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// inspectTC reads the programs of others at TC, as far as this process may.
func (d *Device) inspectTC(i *netif.Iface) {
	if found, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: tcx(false)}); err == nil {
		for _, p := range found.Programs {
			if id := uint32(p.ID); !isWeirs(id) {
				d.TC = append(d.TC, neighbour(id))
			}
		}
	}
	filters, _ := netlink.FilterList(&netlink.GenericLink{LinkAttrs: *i.LinkAttrs}, parent(false))
	for _, f := range filters {
		b, isBPF := f.(*netlink.BpfFilter)
		switch {
		case isBPF && (b.Id == 0 || isWeirs(uint32(b.Id))): // the dump also has a line for each preference
		case isBPF:
			d.TC = append(d.TC, neighbour(uint32(b.Id)))
		default:
			n := Neighbour{Name: fmt.Sprintf("%s, pref %d", f.Type(), f.Attrs().Priority)}
			if !slices.Contains(d.TC, n) {
				d.TC = append(d.TC, n)
			}
		}
	}
}

// occupantOf describes the program that occupies an interface, and how to remove it.
func occupantOf(t netif.Target, i *netif.Iface, byLink bool) *Occupant {
	id := i.Xdp.ProgId
	off := "xdp"
	switch i.Xdp.AttachMode {
	case nl.XDP_ATTACHED_SKB:
		off = "xdpgeneric"
	case nl.XDP_ATTACHED_HW:
		off = "xdpoffload"
	}
	o := &Occupant{
		Text:   describeForeign(foreign{id, i.Index, byLink}),
		Remove: fmt.Sprintf("%s link set dev %s %s off", t.Tool("ip"), i.Name, off),
	}
	o.Advice = fmt.Sprintf("stop its owner; `%s` removes it", o.Remove)
	switch {
	case strings.Contains(o.Text, ", "+dispatcher.Name+","):
		o.Behind, o.Remove = true, fmt.Sprintf("xdp-loader unload %s --all", i.Name)
		o.Advice = fmt.Sprintf("`attach: dispatcher` (--attach dispatcher) makes weir one of its programs; `%s` removes these", o.Remove)
	case byLink: // which ip cannot remove
		o.Remove = ""
		if id := linkOf(id, i.Index); id != 0 {
			o.Remove = fmt.Sprintf("bpftool link detach id %d", id)
		}
		o.Advice = "stop its owner, or remove the pin of the link, which `bpftool link` shows"
		if kernelerr.LacksSysAdmin() {
			o.Advice += fmt.Sprintf("; if it is weir's (`bpftool prog show id %d`) and filters without pins, start weir once with CAP_SYS_ADMIN, "+
				"as with `sudo weir run`, which takes it over without a gap", id)
		}
	}
	return o
}

// AggregationOff is the line that switches off what mlx5 and others refuse beside XDP.
func AggregationOff(t netif.Target) string {
	return fmt.Sprintf("%s -K %s lro off rx-gro-hw off", t.Within("ethtool"), t.Iface)
}

// CanAttachTC fails with kernelerr.ErrUnsupported where packets do not begin with a header that the
// program for TC knows.
func (d *Device) CanAttachTC() error {
	if d.Ethernet || d.IP {
		return nil
	}
	return fmt.Errorf("%w: packets of %s are not known to begin with an Ethernet or an IP header (kind %s)", kernelerr.ErrUnsupported, d.Target.Iface, cmp.Or(d.Kind, "unknown"))
}

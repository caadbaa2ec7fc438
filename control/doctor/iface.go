package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"weir/control/stages"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// device is an interface with what was found out about it.
type device struct {
	Interface
	hooks.Device
	release release
	frags   bool // the kernel has multi-buffer XDP
	cpus    int
	tags    bool // weir acts on VLAN tags there, or may
	blind   bool // this process may not see whose programs are
}

// examineInterface makes all checks of an interface.
func examineInterface(i Interface, s *Subject) []Finding {
	found, err := hooks.Inspect(i.Target)
	waits := "the daemon waits for it"
	if i.Required {
		waits = "it is required, and the daemon does not start without it"
	}
	switch {
	case errors.Is(err, netif.ErrNoInterface):
		f := finding(Problem, "it is not on this host; %s", waits)
		if near := nearest(i.Target); near != "" {
			f.Text += "; there is one of a similar name"
			f = f.thatSets("interfaces: [%s]", item(near, i.Netns))
		} else {
			f.Text += "; see which there are"
			f = f.thatRuns("%s link", i.Within("ip"))
		}
		return []Finding{f}
	case errors.Is(err, netif.ErrNoNetns):
		return []Finding{finding(Problem, "%v; %s; see which there are", err, waits).thatRuns("ip netns list")}
	case err != nil:
		return []Finding{finding(Note, "it cannot be looked at: %v", err)}
	}
	d := &device{Interface: i, Device: *found, cpus: runtime.NumCPU(), tags: s.Config == nil || s.Config.RefusesTC() != ""}
	d.release, _ = kernelRelease()
	d.frags, err = hooks.HasFrags()
	d.frags = d.frags || err != nil && !d.release.before(5, 18) // who may not try it
	d.blind = len(kernelerr.MissingCapabilities()) > 0
	return d.find()
}

func (d *device) find() (all []Finding) {
	for _, c := range ofInterface {
		if (d.Own || d.Attached) && slices.Contains([]string{"driver", "queues", "aggregation"}, c.name) {
			continue
		}
		for _, f := range c.find(d) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

// native reports whether the program would run in the driver.
func (d *device) native() bool { return d.Hook == hooks.Native || d.Hook == hooks.Dispatcher }

// item is an interface as an item of interfaces in weir.yaml.
func item(name, netns string, keys ...string) string {
	if netns != "" {
		keys = append([]string{"netns: " + netns}, keys...)
	}
	if len(keys) == 0 {
		return name
	}
	return fmt.Sprintf("{name: %s, %s}", name, strings.Join(keys, ", "))
}

// with is the line of weir.yaml that filters there with other keys.
func (d *device) with(keys ...string) string {
	return "interfaces: [" + item(d.Iface, d.Netns, keys...) + "]"
}

// tool is a command on the interface, in its namespace.
func (d *device) tool(format string, args ...any) string {
	return d.Within(fmt.Sprintf(format, args...))
}

// nearest returns the interface whose name is most like that of one that is not there, "" if
// none is.
func nearest(t netif.Target) string {
	names, err := t.Interfaces()
	if err != nil {
		return ""
	}
	best, least := "", 3
	for _, name := range names {
		if d := distance(name, t.Iface); d < least && name != "lo" {
			best, least = name, d
		}
	}
	return best
}

// distance is Levenshtein's: the least number of letters to add, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func checkUp(d *device) []Finding {
	if d.Up {
		return nil
	}
	return []Finding{finding(Problem, "it is down").thatRuns("%s", d.tool("ip link set %s up", d.Iface))}
}

// withXDP names the drivers that have native XDP, as of the sources of Linux 6.12 (ndo_bpf). From
// Linux 6.3 on the kernel says it.
var withXDP = strings.Fields(`atlantic bnxt_en bonding cpsw cpsw-switch dpaa_eth dpaa2-eth ena enetc fec fsl_dpa fsl_dpaa2_eth
	fsl_enetc fsl_enetc_vf funeth gve hv_netvsc i40e ice icssg-prueth igb igc ixgbe ixgbevf lan966x-switch mana mlx4_en mlx5_core
	mtk_soc_eth mvneta mvpp2 netsec nfp nicvf octeontx2-nic qede rvu_nicpf rvu_nicvf sfc sfc_ef100 st_gmac stmmaceth thunder-nicvf
	tsnep tun veth virtio_net vmxnet3 xen-netfront vif`)

// noXDP has kinds of devices without a driver that runs programs: docs/interfaces.md.
var noXDP = []string{"bridge", "vlan", "macvlan", "ipvlan", "dummy", "team", "vxlan", "geneve", "ifb", "nlmon", "vrf", "hsr", "macsec"}

// supportsNative says whether the driver has native XDP, by what the kernel says or by the driver.
func (d *device) supportsNative() hooks.Support {
	switch {
	case d.Native != hooks.Unknown:
		return d.Native
	case d.Iface == "lo" || slices.Contains(noXDP, d.Kind):
		return hooks.No
	case d.Kind == "bond" && d.release.before(5, 15):
		return hooks.No
	case slices.Contains(withXDP, d.Driver):
		return hooks.Yes
	}
	return hooks.Unknown
}

// checkDriver says in which mode the program can run.
func checkDriver(d *device) []Finding {
	if d.Hook == hooks.TC {
		if err := d.CanAttachTC(); err != nil {
			return []Finding{finding(Problem, "%v: filter on the interface below", err)}
		}
		return []Finding{finding(OK, "driver %s; TC filters, behind XDP", d.Driver)}
	}
	if !d.Ethernet {
		f := finding(Problem, "its packets have no Ethernet header, which XDP needs")
		switch {
		case d.NeedsXDP != "":
			f.Text += "; " + d.NeedsXDP + " takes XDP: filter on another interface"
		case d.IP:
			return []Finding{f.thatSets("%s", d.with("hook: tc"))}
		}
		f.Text += "; filter on the interface below"
		return []Finding{f}
	}
	native := d.supportsNative()
	if !d.native() {
		if native == hooks.Yes && !d.refused() {
			f := finding(Note, "driver %s; XDP is generic, which is slower, though the driver has native XDP", d.Driver)
			if d.Kind == "veth" {
				return []Finding{finding(OK, "driver %s; XDP is generic", d.Driver)} // native costs TCP more
			}
			return []Finding{f.thatSets("%s", d.with())}
		}
		return []Finding{finding(OK, "driver %s; XDP is generic", d.Driver)}
	}
	switch {
	case native == hooks.Yes:
		return []Finding{finding(OK, "driver %s has native XDP", d.Driver)}
	case native == hooks.Unknown:
		return []Finding{finding(Note, "driver %s is not known to have native XDP, and the kernel, before 6.3, does not say: "+
			"if weir is refused, generic XDP works", d.Driver).thatSets("%s", d.with("xdp: generic"))}
	case d.Kind == "veth":
		return nil // its queues are why
	}
	f := finding(Problem, "driver %s has no native XDP", d.Driver)
	if len(d.Below) > 0 {
		f.Text += fmt.Sprintf("; %s below it may have (xdp: generic and hook: tc work here, but are slower)", strings.Join(d.Below, ", "))
		var items []string
		for _, name := range d.Below {
			items = append(items, item(name, d.Netns))
		}
		return []Finding{f.thatSets("interfaces: [%s]", strings.Join(items, ", "))}
	}
	f.Text += "; generic XDP works, and so does hook: tc; both are slower"
	return []Finding{f.thatSets("%s", d.with("xdp: generic"))}
}

// refused reports whether a check of the interface's set-up says that native mode is refused.
func (d *device) refused() bool {
	native := *d
	native.Hook = hooks.Native
	for _, check := range []func(*device) []Finding{checkQueues, checkMTU, checkAggregation} {
		if len(Of(Problem, check(&native))) > 0 {
			return true
		}
	}
	return false
}

// checkQueues finds numbers of queues that drivers refuse beside XDP, and that waste CPUs.
func checkQueues(d *device) []Finding {
	c := d.Channels
	if d.native() {
		switch d.Driver {
		case "ena", "gve":
			if most := max(1, c.MaxCombined/2); c.Combined > most {
				return []Finding{finding(Problem, "%d of %d queues are in use, and driver %s refuses native XDP with more than half of them", c.Combined, c.MaxCombined, d.Driver).
					thatRuns("%s", d.tool("ethtool -L %s combined %d", d.Iface, most))}
			}
		case "bnxt_en":
			if c.RX > 0 && c.Combined == 0 {
				return []Finding{finding(Problem, "queues receive or transmit only, and driver bnxt_en refuses native XDP without combined ones").
					thatRuns("%s", d.tool("ethtool -L %s rx 0 tx 0 combined %d", d.Iface, c.RX))}
			}
		case "ixgbe":
			if d.VFs > 0 {
				return []Finding{finding(Problem, "SR-IOV is on, with %d virtual functions, and driver ixgbe refuses native XDP beside it", d.VFs).
					thatRuns("echo 0 > /sys/class/net/%s/device/sriov_numvfs", d.Iface)}
			}
		}
		if f, bad := d.vethQueues(); bad {
			return []Finding{f}
		}
	}
	receive := max(c.RX, c.Combined)
	if d.Kind == "" && receive == 1 && c.MaxCombined > 1 && d.cpus > 1 {
		return []Finding{finding(Note, "one queue receives all packets, so that one of %d CPUs filters", d.cpus).
			thatRuns("%s", d.tool("ethtool -L %s combined %d", d.Iface, min(c.MaxCombined, d.cpus)))}
	}
	if receive == 0 {
		return nil // the driver does not say
	}
	return []Finding{finding(OK, "%s", receiveQueues(receive))}
}

func receiveQueues(n int) string {
	if n == 1 {
		return "1 receive queue"
	}
	return fmt.Sprintf("%d receive queues", n)
}

// vethQueues finds a veth that has fewer receive queues than its peer sends by, or, where neither
// the kernel nor the peer's namespace can be asked, may send by.
func (d *device) vethQueues() (f Finding, bad bool) {
	p := d.Peer
	if d.Kind != "veth" || p == nil || d.Native == hooks.Yes || d.Channels.RX == 0 || p.TxQueues <= d.Channels.RX {
		return f, false
	}
	has := receiveQueues(d.Channels.RX)
	f = finding(Problem, "it has %s, and its other end, %s, sends by %d: the driver, veth, refuses native XDP then", has, p.Name, p.TxQueues)
	if !p.Here && d.Native == hooks.Unknown {
		f = finding(Note, "it has %s; its other end, %s, which cannot be seen from here, may send by up to %d: "+
			"if it sends by more queues than this end receives by, the driver, veth, refuses native XDP", has, p.Name, p.TxQueues)
	}
	switch {
	case d.Channels.MaxRX >= p.TxQueues:
		f = f.thatRuns("%s", d.tool("ethtool -L %s rx %d", d.Iface, p.TxQueues))
	case p.Here:
		f = f.thatRuns("%s", d.tool("ethtool -L %s tx %d", p.Name, d.Channels.RX))
	default:
		f.Text += "; in the network namespace of that end"
		f = f.thatRuns("ethtool -L %s tx %d", p.Name, d.Channels.RX)
	}
	return f, true
}

// largest returns the largest MTU that native mode takes, 0 if none is too large: docs/interfaces.md.
func (d *device) largest() int {
	const page = 4096 - 256 - 320 - 14 // without headroom, the end of a socket buffer, and the Ethernet header
	switch {
	case d.Driver == "tun":
		return 0
	case d.Driver == "virtio_net" && d.release.before(6, 1):
		return 4080
	case d.Driver == "virtio_net" && d.release.before(6, 12):
		return 4064
	case d.frags && (d.Buffers == hooks.Yes || d.Driver == "virtio_net" || d.Driver == "veth"):
		return 0
	case d.frags && d.Buffers == hooks.Unknown:
		return 0 // weir says so when it is refused
	}
	return page
}

func checkMTU(d *device) []Finding {
	mtu, whose := d.MTU, d.Iface
	if p := d.Peer; p != nil && p.MTU > mtu {
		mtu, whose = p.MTU, p.Name // what it sends must fit
	}
	most := d.largest()
	if !d.native() || most == 0 || mtu <= most {
		return []Finding{finding(OK, "an MTU of %d", d.MTU)}
	}
	f := finding(Problem, "an MTU of %d at %s, and driver %s takes at most %d with native XDP", mtu, whose, d.Driver, most)
	if !d.frags {
		f.Text += "; from Linux 5.18 on, drivers may take more"
	}
	f.Text += "; xdp: generic has no such limit"
	return []Finding{f.thatRuns("%s", d.tool("ip link set dev %s mtu %d", whose, most))}
}

// checkAggregation looks at packets that the NIC joins before XDP.
func checkAggregation(d *device) []Finding {
	var on []string
	if d.LRO.On {
		on = append(on, "LRO")
	}
	if d.HardwareGRO.On {
		on = append(on, "hardware GRO")
	}
	if len(on) == 0 || d.Hook == hooks.TC {
		return []Finding{finding(OK, "the NIC joins no packets (LRO, hardware GRO)")}
	}
	what := strings.Join(on, " and ")
	fixed := d.LRO.On && d.LRO.Fixed || d.HardwareGRO.On && d.HardwareGRO.Fixed
	switch {
	case !d.native():
		return []Finding{finding(OK, "the NIC joins packets (%s); the kernel switches LRO off for generic XDP", what)}
	case d.Driver == "mlx5_core":
		return []Finding{finding(Problem, "%s is on, and driver mlx5_core refuses native XDP beside it", what).thatRuns("%s", hooks.AggregationOff(d.Interface.Target))}
	case d.Driver == "virtio_net" && fixed:
		return []Finding{finding(Problem, "%s is on and cannot be switched off here, and driver virtio_net refuses native XDP beside it; "+
			"the machine's host could, with guest_tso4=off,guest_tso6=off", what).thatSets("%s", d.with("xdp: generic"))}
	case d.Driver == "virtio_net":
		return []Finding{finding(OK, "the NIC joins packets (%s); driver virtio_net ends that for native XDP", what)}
	case fixed:
		return []Finding{finding(Note, "%s is on and cannot be switched off: if weir is refused, generic XDP works", what).thatSets("%s", d.with("xdp: generic"))}
	}
	return []Finding{finding(Note, "%s is on: several drivers refuse native XDP beside it", what).thatRuns("%s", hooks.AggregationOff(d.Interface.Target))}
}

// checkVLAN finds tags that XDP does not see. Entries match all the same; some stages leave such
// packets alone.
func checkVLAN(d *device) []Finding {
	f := finding(Note, "the NIC takes VLAN tags off before XDP: entries match all the same, but "+stages.Untagged+" leave such packets alone")
	switch p := d.Peer; {
	case d.Hook == hooks.TC || !d.tags:
		return nil
	case p != nil && p.Here && p.InsertsVLAN:
		f.Text = strings.Replace(f.Text, "the NIC takes", p.Name+", its other end, hands over", 1)
		f.Text = strings.Replace(f.Text, "off before XDP", "beside the frame, where XDP does not see them", 1)
		return []Finding{f.thatRuns("%s", d.tool("ethtool -K %s txvlan off", p.Name))}
	case d.Kind == "veth" || !d.StripsVLAN.On:
		return nil
	case d.StripsVLAN.Fixed:
		return []Finding{f}
	}
	return []Finding{f.thatRuns("%s", d.tool("ethtool -K %s rxvlan off", d.Iface))}
}

// checkXDP looks for other programs at XDP.
func checkXDP(d *device) []Finding {
	o := d.Program
	switch {
	case d.Own, d.Attached:
		return []Finding{finding(OK, "weir's program is attached")}
	case o == nil || d.Hook == hooks.TC:
		return []Finding{finding(OK, "no other program is attached at XDP")}
	case d.blind: // it may be weir's: nothing to remove
		return []Finding{finding(Note, "a program is attached, and whether it is weir's can be seen by root only").thatRuns("sudo weir doctor")}
	case o.Behind && d.Hook.ByDispatcher():
		return []Finding{finding(OK, "weir will be one of the programs of %s", o.Text)}
	case o.Behind:
		return []Finding{finding(Problem, "a foreign program is attached, which weir leaves alone: %s; weir can be one of its programs", o.Text).
			thatSets("%s", d.with("attach: dispatcher"))}
	case o.Remove == "":
		return []Finding{finding(Problem, "a foreign program is attached, which weir leaves alone: %s: %s", o.Text, o.Advice)}
	}
	return []Finding{finding(Problem, "a foreign program is attached, which weir leaves alone: %s: stop its owner, or remove it", o.Text).
		thatRuns("%s", o.Remove)}
}

// checkTC says which programs at TC come behind weir.
func checkTC(d *device) []Finding {
	if len(d.TC) == 0 {
		return []Finding{finding(OK, "no other program is attached at TC")}
	}
	var names []string
	for _, n := range d.TC {
		name := n.Name
		if n.ID != 0 {
			name = n.String()
		}
		names = append(names, name)
	}
	behind := "they see what weir lets pass"
	if d.Hook == hooks.TC {
		behind = "weir goes before them"
	}
	return []Finding{finding(OK, "programs at TC: %s; %s", strings.Join(names, ", "), behind)}
}

// checkTCP finds veths that would be filtered natively without need: with XDP, their driver
// passes on TCP in single packets.
func checkTCP(d *device) []Finding {
	if d.Kind != "veth" || d.Hook != hooks.Native || d.NeedsXDP != "" {
		return nil
	}
	return []Finding{finding(Note, "it is a veth, through which TCP is several times slower with native XDP; hook: tc costs it little").
		thatSets("%s", d.with("hook: tc"))}
}

// checkSYNCookies finds what keeps the SYNs of an interface from being answered.
func checkSYNCookies(d *device) (all []Finding) {
	if o := d.SYNCookies.Find(d.Interface.Target); o != nil {
		all = append(all, finding(Problem, "syncookies: %s: %s", d.SYNCookies, o.Text).thatRuns("%s", d.tool("%s", o.Mend)))
	}
	if d.SYNCookies.On() && d.Kind == "veth" && d.native() {
		all = append(all, finding(Note, "syncookies: %s: the driver, veth, delivers answers only if the other end has an XDP program, too", d.SYNCookies).
			thatSets("%s", d.with("xdp: generic", "syncookies: "+string(d.SYNCookies))))
	}
	return all
}

// Likely reports whether weir would be started on an interface that the user has not named: it is up,
// not the loopback, and it receives no packets from interfaces below it.
func Likely(i Interface) bool {
	d, err := hooks.Inspect(i.Target)
	return err == nil && d.Up && d.Ethernet && i.Iface != "lo" && len(d.Below) == 0
}

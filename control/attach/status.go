package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/control/stage"
	"weir/control/stages"
	"weir/filter/ordered"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Count is a number of packets and of their bytes.
type Count = stage.Count

// Status is the state of one attachment, as the kernel has it.
type Status struct {
	Name      string `json:"interface"`
	Netns     string `json:"netns,omitempty"`
	Direction string `json:"direction"` // of the packets: in or out
	XDP       string `json:"xdp"`       // native, generic, tc, dispatcher or dispatcher-generic
	ProgramID uint32 `json:"program_id"`
	Severed   bool   `json:"severed"` // the interface is gone, or the program was taken off it
	Running   bool   `json:"running"` // the process that attached it does
	Metadata
	Total   Count            `json:"total"`
	Dropped Count            `json:"dropped"`
	Reasons map[string]Count `json:"reasons"`
	drops   map[string]bool  // which of these are of dropped packets
	ByList  []ListCount      `json:"by_list"`
	// NotIP are the frames with the reason not-ip by EtherType, the most frequent first.
	NotIP []EtherTypeCount `json:"not_ip"`
	// Order has the programs that packets meet at TC or in a dispatcher, this one among them, in their order.
	Order []hooks.Neighbour `json:"order,omitempty"`
	stages.State
}

// ListCount is the number of packets that a block list has matched: dropped, or
// in monitor mode only counted.
type ListCount struct {
	List string `json:"list"`
	Count
}

// EtherTypeCount is the number of frames of a protocol that is not IP.
type EtherTypeCount struct {
	EtherType string `json:"ethertype"`      // as 0x88e7; 802.3 of frames that have a length instead, or other
	Name      string `json:"name,omitempty"` // of the protocol, where weir knows it
	Count
}

// notIP returns the counts of EtherTypes, the most frequent first, and then the others.
func notIP(e loader.EtherTypes) []EtherTypeCount {
	counts := []EtherTypeCount{}
	for t, c := range e.ByType {
		counts = append(counts, EtherTypeCount{packet.FormatEtherType(t), packet.EtherTypeName(t), Count(c)})
	}
	ordered.By(counts, func(a, b EtherTypeCount) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.EtherType, b.EtherType))
	})
	if e.Others.Packets > 0 {
		counts = append(counts, EtherTypeCount{EtherType: packet.OtherEtherTypes, Count: Count(e.Others)})
	}
	return counts
}

// ReadStatus returns the state of all attachments that are pinned. Where some
// cannot be opened, it returns the others together with an error.
func ReadStatus(pins loader.Pins) ([]Status, error) {
	attachments, err := pins.List()
	all := []Status{}
	for _, a := range attachments {
		i, bad := statusOf(a)
		err = errors.Join(err, bad)
		all = append(all, i)
		if bad := a.Close(); bad != nil {
			err = errors.Join(err, fmt.Errorf("close the attachment to %s: %w", a.Target(), bad))
		}
	}
	return all, err
}

// ForgetShared removes the pins of the maps that all programs share, unless a program reads
// some: that of another daemon.
func ForgetShared(pins loader.Pins) error {
	attachments, err := pins.List()
	used := err != nil // then some may
	for _, a := range attachments {
		m, bad := MetadataOf(a)
		used = used || bad != nil || m.Shares()
		err = errors.Join(err, a.Close())
	}
	if used || err != nil {
		return err
	}
	return pins.ForgetShared()
}

// statusOf returns the state of an attachment. Where its metadata cannot be read,
// that is missing, and the error says so.
func statusOf(a *loader.Attachment) (Status, error) {
	t := a.Target()
	d, err := MetadataOf(a)
	i := Status{
		Name: t.Iface, Netns: t.Netns, Direction: t.Direction(), XDP: a.Hook().String(),
		ProgramID: a.ProgramID(), Severed: a.Severed(), Running: Alive(d.PID),
		Metadata: d,
		Reasons:  make(map[string]Count),
		drops:    make(map[string]bool),
		ByList:   []ListCount{},
		NotIP:    []EtherTypeCount{},
	}
	if i.Severed {
		i.ProgramID = 0 // it runs nowhere
	}
	var bad error
	i.Order, bad = a.Order()
	err = errors.Join(err, bad)
	if a.Stats() == nil {
		return i, err
	}
	for n, c := range a.Stats().Reasons(nil) {
		r := verdict.Reason(n)
		name := r.String()
		if n < len(d.CountedReasons) { // which may be those of another version
			name = d.CountedReasons[n]
		}
		i.Reasons[name] = Count(c)
		i.Total.Add(c)
		if d.Drops(r) {
			i.drops[name] = true
			i.Dropped.Add(c)
		}
	}
	i.ByList = byList(d, t.Out, a.Stats().Lists(nil))
	i.NotIP = notIP(a.Stats().EtherTypes())
	i.State = d.About.State(a.Target(), a.Stats())
	return i, err
}

// byList names the counters of the lists of a direction. In approximate mode, the list of a hit is
// unknown, and the name empty.
func byList(d Metadata, out bool, counters []loader.Counter) []ListCount {
	counts := []ListCount{}
	if len(counters) > 0 && counters[0].Packets > 0 {
		counts = append(counts, ListCount{Count: Count(counters[0])})
	}
	for i, l := range d.Lists {
		if l.Allow || i+1 >= len(counters) || (l.Direction == engine.Out.String()) != out {
			continue
		}
		c := counters[i+1]
		counts = append(counts, ListCount{
			List:  l.Name,
			Count: Count{Packets: c.Packets - l.Before.Packets, Bytes: c.Bytes - l.Before.Bytes},
		})
	}
	return counts
}

// Interface is the interface and the direction of the packets.
func (i Status) Interface() netif.Target {
	return netif.Target{Netns: i.Netns, Iface: i.Name, Out: i.Direction == netif.Target{Out: true}.Direction()}
}

// TopReasons returns the names of the reasons that have packets, the most frequent
// first: those that drop, or those that do not.
func (i Status) TopReasons(drop bool) []string {
	var names []string
	for name, c := range i.Reasons {
		if c.Packets > 0 && i.drops[name] == drop {
			names = append(names, name)
		}
	}
	ordered.By(names, func(a, b string) int {
		switch x, y := i.Reasons[a].Packets, i.Reasons[b].Packets; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return names
}

// Age returns how long the interface has been filtered.
func (i Status) Age(now time.Time) time.Duration { return now.Sub(i.Since).Round(time.Second) }

// OfOther reports whether another running daemon wrote the metadata.
func (m Metadata) OfOther() bool { return m.PID != os.Getpid() && Alive(m.PID) }

// Alive reports whether a process runs and is weir: the PID may be another's
// by now.
func Alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	name, running := process(strconv.Itoa(pid))
	if name == "" && errors.Is(unix.Kill(pid, 0), unix.EPERM) {
		return true // another user's, which ProtectProc= of systemd hides
	}
	own, _ := process("self") // which may go by another name
	return running && (name == own || strings.HasPrefix(name, "weir"))
}

// ServiceOf returns the service of systemd's that a process is, "" if it is none.
func ServiceOf(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	// What is run from a shell may be in the control group of sshd's service.
	text, _ := os.ReadFile(dir + "/status")
	if !strings.Contains(string(text), "\nPPid:\t1\n") {
		return ""
	}
	text, _ = os.ReadFile(dir + "/cgroup")
	for line := range strings.Lines(string(text)) {
		if name := path.Base(strings.TrimSpace(line)); strings.HasSuffix(name, ".service") {
			return name
		}
	}
	return ""
}

// process returns the name of a process and whether it still runs.
func process(pid string) (name string, running bool) {
	// "1234 (name) S …": names may hold anything.
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, text, _ := strings.Cut(string(stat), "(")
	end := strings.LastIndex(text, ") ")
	if end < 0 || end+2 >= len(text) {
		return "", false
	}
	state := text[end+2]
	return text[:end], state != 'Z' && state != 'X' // a zombie filters no more
}

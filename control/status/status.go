// Package status says what weir does on each interface: what stands in the
// kernel, and what the process that put it there has said about it.
package status

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/filter/icarus"
	"weir/filter/verdict"
	"weir/loader"
)

// Count is a number of packets and of their bytes.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

func (c *Count) add(d loader.Counter) {
	c.Packets += d.Packets
	c.Bytes += d.Bytes
}

// Interface is the state of one attachment.
type Interface struct {
	Name      string `json:"interface"`
	Netns     string `json:"netns,omitempty"`
	XDP       string `json:"xdp"` // native, generic or offload
	ProgramID uint32 `json:"program_id"`
	Severed   bool   `json:"severed"` // the interface is gone, or the program was taken off it
	Running   bool   `json:"running"` // the process that attached it lives
	Description
	Total   Count            `json:"total"`
	Dropped Count            `json:"dropped"`
	Reasons map[string]Count `json:"reasons"`
	ByList  []ListCount      `json:"by_list"`
	// Loops are the packets by what became of their loop filter, if they have any.
	Loops map[string]uint64 `json:"loop_packets,omitempty"`
}

// ListCount is what a block list has caught: dropped, or only counted in
// monitor mode.
type ListCount struct {
	List string `json:"list"`
	Count
}

// Read gives the state of all attachments that are pinned. Where some cannot
// be opened, it gives the others together with an error.
func Read(pins loader.Pins) ([]Interface, error) {
	attachments, err := pins.List()
	all := []Interface{}
	for _, a := range attachments {
		i, bad := Of(a)
		err = errors.Join(err, bad)
		all = append(all, i)
		if bad := a.Close(); bad != nil {
			err = errors.Join(err, fmt.Errorf("close the attachment to %s: %w", a.Target(), bad))
		}
	}
	return all, err
}

// Of is the state of an attachment. Where its description cannot be read, that
// is missing, and the error says so.
func Of(a *loader.Attachment) (Interface, error) {
	t := a.Target()
	d, err := DescriptionOf(a)
	i := Interface{
		Name: t.Iface, Netns: t.Netns, XDP: a.Hook().String(),
		ProgramID: a.ProgramID(), Severed: a.Severed(), Running: Alive(d.PID),
		Description: d,
		Reasons:     make(map[string]Count),
		ByList:      []ListCount{},
	}
	if i.Severed {
		i.ProgramID = 0 // it runs nowhere
	}
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
		i.Total.add(c)
		if d.Drops(r) {
			i.Dropped.add(c)
		}
	}
	i.ByList = byList(d, a.Stats().Lists(nil))
	if d.Loop != nil {
		i.Loops = make(map[string]uint64)
		for n, packets := range a.Stats().Loops() {
			if o := icarus.Outcome(n); o != icarus.Untouched {
				i.Loops[o.String()] = packets
			}
		}
	}
	return i, err
}

// Policy is the policy as far as the description has it: that which the action of
// a reason depends on.
func (d *Description) Policy() *verdict.Policy {
	return &verdict.Policy{DropMalformed: d.DropMalformed, DropLooped: d.Loop != nil && d.Loop.Drop, Monitor: d.Monitor}
}

// Drops reports whether packets that leave for a reason are dropped.
func (d *Description) Drops(r verdict.Reason) bool { return d.Policy().Action(r) == verdict.Drop }

// byList names the counters of lists. In approximate mode, hits cannot be told
// apart, and stand under the name of no list.
func byList(d Description, counters []loader.Counter) []ListCount {
	counts := []ListCount{}
	if len(counters) > 0 && counters[0].Packets > 0 {
		counts = append(counts, ListCount{Count: Count(counters[0])})
	}
	for i, l := range d.Lists {
		if l.Allow || i+1 >= len(counters) {
			continue
		}
		c := counters[i+1]
		counts = append(counts, ListCount{
			List:  l.Name,
			Count: Count{c.Packets - l.Before.Packets, c.Bytes - l.Before.Bytes},
		})
	}
	return counts
}

// TopReasons are the names of the reasons that have packets, the most frequent
// first.
func (i Interface) TopReasons() []string {
	var names []string
	for name, c := range i.Reasons {
		if c.Packets > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
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

// Age is the time since when the interface is filtered.
func (i Interface) Age(now time.Time) time.Duration { return now.Sub(i.Since).Round(time.Second) }

// Alive tells whether a process is there, and is a weir: the number of one that
// is gone may be another's by now.
func Alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	name, running := process(strconv.Itoa(pid))
	own, _ := process("self") // which may go by another name
	return running && (name == own || strings.HasPrefix(name, "weir"))
}

// process gives the name of a process, and tells whether it still runs.
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

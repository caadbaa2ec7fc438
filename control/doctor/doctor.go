// Package doctor looks at a host for what keeps weir from filtering there, or from doing it as
// well as it could, and says how to mend it. It changes nothing, and takes no daemon.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"weir/control/config"
	"weir/control/stages"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // weir filters, but slower or not all that it could
	Problem Level = "problem" // weir does not filter, or loses something
)

// Finding is the answer of a check.
type Finding struct {
	Check     string `json:"check"`
	Interface string `json:"interface,omitempty"` // "": the host
	Level     Level  `json:"level"`
	Text      string `json:"text"`
	Run       string `json:"run,omitempty"` // a line for a shell, as root, that mends it
	Set       string `json:"set,omitempty"` // a line of weir.yaml that mends it

	others []string // interfaces of which Group has found the same
}

// String returns the finding in a line, without its level.
func (f Finding) String() string {
	text, of := f.Text, ""
	switch {
	case len(f.others) > 0:
		text, of = "interfaces "+f.interfaces()+": "+text, " for "+f.Interface
	case f.Interface != "":
		text = "interface " + f.Interface + ": " + text
	}
	if f.Run != "" {
		text += ": `" + f.Run + "`" + of
	}
	if f.Set != "" {
		text += ": `" + f.Set + "` in weir.yaml" + of
	}
	return text
}

// interfaces names the finding's interfaces, the first few of many.
func (f *Finding) interfaces() string {
	const most = 4
	names := slices.Concat([]string{f.Interface}, f.others)
	if len(names) > most {
		names = append(names[:most-1], fmt.Sprintf("%d more", len(names)-most+1))
	}
	return english.OxfordWordSeries(names, "and")
}

// Group joins what is the same of several interfaces into one finding, which prints as one:
// of the first interface, with its mend.
func Group(all []Finding) (groups []Finding) {
	type text struct {
		Check string
		Level Level
		Text  string
	}
	at := make(map[text]int)
	for _, f := range all {
		t := text{f.Check, f.Level, f.Text}
		if i, ok := at[t]; ok && f.Interface != "" {
			groups[i].others = append(groups[i].others, f.Interface)
			continue
		}
		if f.Interface != "" {
			at[t] = len(groups)
		}
		groups = append(groups, f)
	}
	return groups
}

// Of selects the findings of a level.
func Of(level Level, all []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f Finding) bool { return f.Level != level })
}

// Interface is where weir filters, or would.
type Interface struct {
	netif.Target
	Hook     hooks.Hook
	NeedsXDP string // why hook: tc is not for it; "": it is
	Required bool   // the daemon does not start without it
	Attached bool   // weir's program is there: what might refuse it has not

	SYNCookies stages.SYNCookies
}

// Subject names the host, the interfaces and the configuration to look at.
type Subject struct {
	Interfaces []Interface
	Pins       loader.Pins // "": not looked at
	StateDir   string      // "": nothing is saved
	Process    bool        // this process is as privileged and limited as the daemon will be

	Config *config.Config // nil: none is known
}

// Configured returns the subject of a configuration. A pattern stands for the interfaces that
// it matches now.
func Configured(c *config.Config) Subject {
	s := Subject{Pins: c.Pins, StateDir: string(c.StateDir), Config: c}
	for _, i := range c.Interfaces {
		t := netif.Target{Netns: i.Netns, Iface: i.Name}
		all := []netif.Target{t}
		if t.Glob() {
			all = matching(t)
		}
		for _, t := range all {
			if slices.ContainsFunc(s.Interfaces, func(o Interface) bool { return o.Target == t }) {
				continue // the first one counts
			}
			needs := cmp.Or(i.NeedsXDP(), c.RefusesTC())
			s.Interfaces = append(s.Interfaces, Interface{Target: t, Hook: i.Place(), NeedsXDP: needs, Required: i.Required, SYNCookies: i.SYNCookies})
		}
	}
	return s
}

// matching returns the interfaces that a pattern matches, none where its namespace is not there.
func matching(t netif.Target) (all []netif.Target) {
	names, err := t.Interfaces()
	if err != nil {
		return nil
	}
	for _, name := range names {
		if o := (netif.Target{Netns: t.Netns, Iface: name}); t.Covers(o) {
			all = append(all, o)
		}
	}
	return all
}

// The checks, in the order of their findings.
var (
	ofHost = []struct {
		name string
		find func(*Subject) []Finding
	}{
		{"kernel", checkKernel},
		{"btf", checkBTF},
		{"jit", checkJIT},
		{"cache", checkCache},
		{"realtime", checkRealtime},
		{"lockdown", checkLockdown},
		{"capabilities", checkCapabilities},
		{"bpffs", checkBPFFS},
		{"memlock", checkMemlock},
		{"files", checkFiles},
		{"state", checkState},
		{"disk", checkDisk},
		{"clock", checkClock},
		{"config", checkConfig},
	}
	ofInterface = []struct {
		name string
		find func(*device) []Finding
	}{
		{"up", checkUp},
		{"driver", checkDriver},
		{"queues", checkQueues},
		{"mtu", checkMTU},
		{"aggregation", checkAggregation},
		{"vlan", checkVLAN},
		{"xdp", checkXDP},
		{"tc", checkTC},
		{"tcp", checkTCP},
		{"syncookies", checkSYNCookies},
	}
)

const (
	// patience bounds the time of all checks together: a file system of the network may
	// never answer.
	patience = 2 * time.Second

	// mostInterfaces bounds the number of interfaces that are looked at.
	mostInterfaces = 64
)

// Examine makes all checks, within two seconds. A check that has not ended by then is a
// problem of its own.
func Examine(ctx context.Context, s Subject) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	type task struct {
		check, iface string
		done         chan []Finding
	}
	var tasks []task
	begin := func(check, iface string, find func() []Finding) {
		t := task{check, iface, make(chan []Finding, 1)}
		tasks = append(tasks, t)
		go func() { t.done <- find() }()
	}
	for _, c := range ofHost {
		begin(c.name, "", func() []Finding { return c.find(&s) })
	}
	for n, i := range s.Interfaces {
		if n == mostInterfaces {
			begin("interfaces", "", func() []Finding {
				return []Finding{{Level: Note, Text: fmt.Sprintf("%d more interfaces were not looked at: name them with --iface", len(s.Interfaces)-n)}}
			})
			break
		}
		begin("interface", i.String(), func() []Finding { return examineInterface(i, &s) })
	}

	all := []Finding{}
	for _, t := range tasks {
		found := []Finding{{Level: Problem, Text: "looking at it took longer than 2 s"}}
		select {
		case found = <-t.done:
		case <-ctx.Done():
			select { // it has ended as well
			case found = <-t.done:
			default:
			}
		}
		for _, f := range found {
			f.Check, f.Interface = cmp.Or(f.Check, t.check), t.iface
			all = append(all, f)
		}
	}
	return all
}

package first

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"weir/control/stage"
	"weir/filter/recent"
	"weir/loader"
	"weir/loader/netif"
)

// About describes what looks for new flows.
type About struct {
	Key    string      `json:"key"`    // what makes a flow
	Window float64     `json:"window"` // how long a flow is known at least, in seconds
	Filter recent.Kind `json:"filter"` // what remembers flows
	Lines  uint32      `json:"lines"`  // of a generation, or of half of the cells, 64 bytes each
	Events int         `json:"events"` // that a CPU may send in a second
}

// About returns what is said of the programs for incoming packets, nil where they do not
// look for new flows.
func (s *Spec) About(t netif.Target) *About {
	if !s.On() || t.Out {
		return nil
	}
	return &About{Key: string(s.Key), Window: s.Window.Seconds(), Filter: s.Filter, Lines: uint32(s.Memory / banks / line), Events: s.Events}
}

// forgets reports whether flows may be forgotten before their window has ended.
func (a *About) forgets() bool { return a.Filter != recent.Bloom }

// State has the counts of flows that were not seen lately.
type State struct {
	Flows        uint64         `json:"flows"`
	ByImportance []ByImportance `json:"by_importance"` // those of which there are any
	WindowFlows  uint64         `json:"window_flows"`  // in the last window
	Window       float64        `json:"window"`        // its length in seconds; 0: none has ended
	FullWindows  uint64         `json:"full_windows"`  // that ended early
	// MissedShare is the share of new flows that are taken for known ones now.
	MissedShare float64 `json:"missed_share"`
	// ForgottenShare is the predicted share of the flows that are taken for new ones when
	// they return after as many others as the last window had, by importance from 1. Empty
	// with a Bloom filter, which forgets none, and before the first window has ended.
	ForgottenShare []float64 `json:"forgotten_share,omitempty"`
}

// ByImportance are the counts of flows of an importance.
type ByImportance struct {
	Importance int    `json:"importance"`
	Flows      uint64 `json:"flows"`
	Events     uint64 `json:"events"`
	Suppressed uint64 `json:"suppressed"` // events for which the budget had no room
}

// State returns what the stats of an interface have of new flows, nil if they have nothing.
func (a *About) State(s *loader.Stats) (n *State) {
	if a == nil {
		return nil
	}
	s.Read(func(k loader.Kept) {
		if stateOf(k).Identity == 0 {
			return
		}
		c := countsOf(k)
		n = &State{ByImportance: []ByImportance{}, WindowFlows: c.New, Window: c.Window.Seconds(), FullWindows: c.Full}
		if a.forgets() {
			n.MissedShare, n.ForgottenShare = recent.Missed(wordsOf(k)), a.forgotten(&c)
		} else {
			n.MissedShare = recent.FalsePositive(a.Lines, int(c.EnteredNow), int(c.Entered))
		}
		for i, flows := range c.Flows {
			n.Flows += flows
			if flows > 0 {
				n.ByImportance = append(n.ByImportance, ByImportance{i, flows, c.Events[i], c.Suppressed[i]})
			}
		}
	})
	return n
}

// forgotten predicts the share of the flows that cells forget, by importance from 1.
func (a *About) forgotten(c *Counts) (shares []float64) {
	var levels recent.Levels
	var flows float64
	for level, n := range c.Flows {
		levels[level] = float64(n)
		flows += float64(n)
	}
	if c.Window == 0 || flows == 0 {
		return nil
	}
	chain := a.Filter.NewChain(levels)
	for level := 1; level <= recent.MaxLevel; level++ {
		shares = append(shares, chain.Forgotten(level, float64(c.Entered), 2*a.Lines))
	}
	return shares
}

// Rows describes the flows that were not seen lately.
func (a *About) Rows(n *State) (all []stage.Row) {
	if a == nil || n == nil {
		return nil
	}
	row := func(name, format string, args ...any) {
		all = append(all, stage.Row{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	if n.Window > 0 {
		row("new flows", "%s in the last %v, by %s; %s in all", humanize.Comma(int64(n.WindowFlows)),
			time.Duration(n.Window*float64(time.Second)).Round(100*time.Millisecond), a.Key, humanize.Comma(int64(n.Flows)))
	} else {
		row("new flows", "%s, by %s", humanize.Comma(int64(n.Flows)), a.Key)
	}
	var events, suppressed uint64
	for _, of := range n.ByImportance {
		events, suppressed = events+of.Events, suppressed+of.Suppressed
	}
	if suppressed > 0 {
		row("  events", "%s; %s were suppressed, above %d a second and CPU", humanize.Comma(int64(events)), humanize.Comma(int64(suppressed)), a.Events)
	}
	if share := n.ForgottenShare; len(share) > 0 {
		row("  forgotten", "about %.0f%% of the flows of importance 1 that return a window later, %.0f%% of importance %d: they count as new",
			100*share[0], 100*share[len(share)-1], len(share))
	}
	if n.MissedShare > 0.08 {
		row("  MISSED", "%.0f%% of new flows are taken for known ones: more memory remembers more", 100*n.MissedShare)
	}
	times := humanize.Comma(int64(n.FullWindows)) + " "
	if n.FullWindows > 0 && a.forgets() {
		row("  full", "the memory was full %s: more remembers more", times+english.PluralWord(int(n.FullWindows), "time", "times"))
	} else if n.FullWindows > 0 {
		row("  full", "%s ended early: more memory remembers more", times+english.PluralWord(int(n.FullWindows), "window", "windows"))
	}
	return all
}

var (
	newFlows   = &stage.Family{Name: "weir_first_seen_flows_total", Help: "Flows that were not seen lately, by importance, from 1 to 7.", Label: "importance", Counter: true}
	events     = &stage.Family{Name: "weir_first_seen_events_total", Help: "Events of such flows.", Label: "importance", Counter: true}
	suppressed = &stage.Family{Name: "weir_first_seen_suppressed_total", Help: "Events of such flows for which the budget had no room.", Label: "importance", Counter: true}
	inWindow   = &stage.Family{Name: "weir_first_seen_window_flows", Help: "Such flows in the last window."}
	full       = &stage.Family{Name: "weir_first_seen_full_windows_total", Help: "Windows that ended early, since the memory was full; with other filters than bloom, times that it was found full.", Counter: true}
	missed     = &stage.Family{Name: "weir_first_seen_missed_ratio", Help: "Share of new flows that are taken for known ones now."}
	forgotten  = &stage.Family{Name: "weir_first_seen_forgotten_ratio", Help: "Predicted share of flows that count as new when they return after as many others as the last window had, by importance. With a Bloom filter there are none.", Label: "importance"}
)

// Families are the metrics of new flows.
var Families = []*stage.Family{newFlows, events, suppressed, inWindow, full, missed, forgotten}

// Counted returns the counters of an interface.
func (a *About) Counted(s *loader.Stats) (all []stage.Sample) {
	if a == nil {
		return nil
	}
	var c Counts
	s.Read(func(k loader.Kept) { c = countsOf(k) })
	for level := 1; level < Levels; level++ {
		of := strconv.Itoa(level)
		all = append(all, stage.Sample{Family: newFlows, Of: of, Value: float64(c.Flows[level])},
			stage.Sample{Family: events, Of: of, Value: float64(c.Events[level])},
			stage.Sample{Family: suppressed, Of: of, Value: float64(c.Suppressed[level])})
	}
	return append(all, stage.Sample{Family: full, Value: float64(c.Full)})
}

// Gauges returns the state of an interface.
func (a *About) Gauges(s *loader.Stats) []stage.Sample {
	if a == nil {
		return nil
	}
	n := new(State)
	if of := a.State(s); of != nil {
		n = of
	}
	all := []stage.Sample{{Family: inWindow, Value: float64(n.WindowFlows)}, {Family: missed, Value: n.MissedShare}}
	for i, share := range n.ForgottenShare {
		all = append(all, stage.Sample{Family: forgotten, Of: strconv.Itoa(i + 1), Value: share})
	}
	return all
}

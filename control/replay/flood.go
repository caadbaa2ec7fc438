package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir/control/capture"
	"weir/control/engine"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/verdict"
)

// FloodOptions control how floods are searched in a capture.
type FloodOptions struct {
	Own      []netip.Prefix // the host's own networks: packets from there go out
	Verdicts string         // CSV file, as in [Options]
	Stdin    io.Reader      // the capture that is called "-"
}

// FloodSummary says what floods a capture has.
type FloodSummary struct {
	Packets  int            `json:"packets"`
	Dropped  int            `json:"dropped"` // by rules, from the moment that they were found
	Findings []FloodFinding `json:"findings"`
}

// FloodFinding is a finding at the end of a second.
type FloodFinding struct {
	Seconds  float64     `json:"seconds"` // since the second of the first packet
	Rate     float64     `json:"rate"`    // packets a second that no earlier rule matches
	Usual    float64     `json:"usual"`
	Of       string      `json:"of"` // what is above the usual
	Verdict  string      `json:"verdict"`
	Proposed bool        `json:"proposed,omitempty"` // the rules are not applied, but to be tried first
	Rules    []FloodRule `json:"rules,omitempty"`
}

// FloodRule is a rule with its evidence. Shares are from 0 to 1.
type FloodRule struct {
	Pattern       string  `json:"pattern"`
	Rate          float64 `json:"rate"`
	Covered       float64 `json:"covered"` // of the excess
	Low           float64 `json:"low"`     // bounds of its share of packets, 95 %
	High          float64 `json:"high"`
	Sources       int     `json:"sources"`       // distinct ones in the sample
	Packets       float64 `json:"packets"`       // of the quiet seconds that it matches
	Conversations float64 `json:"conversations"` // of the quiet seconds of which it matches a packet
}

// floods searches in a stream of packets.
type floods struct {
	own      []netip.Prefix
	detector flood.Detector
	random   *rand.Rand
	begin    time.Time // the second of the first packet
	now      time.Time // the begin of the second under way
	sample   []flood.Record
	packets  uint64 // that came in in this second
	applied  []flood.Rule
	// The conversations of outgoing packets: the last ones, and those before.
	sent, before map[flood.Flow]bool
	summary      *FloodSummary
}

const maxSent = 1 << 18 // conversations of each generation

// Flood searches a capture for floods second by second, by its own time stamps, and drops what the
// rules match that it finds. If the capture cannot be read to its end, it returns a summary of the
// packets before and an error; the summary is nil if nothing was read.
func Flood(ctx context.Context, o FloodOptions, name string) (s *FloodSummary, err error) {
	files := Options{Verdicts: o.Verdicts, Stdin: o.Stdin}
	r, err := files.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var w *verdictWriter
	if o.Verdicts != "" {
		created, createErr := files.createVerdicts([]string{name})
		if createErr != nil {
			return nil, createErr
		}
		w = created
		defer func() {
			keep := err == nil || w.n > 0 && errors.Is(err, capture.ErrTruncated)
			err = errors.Join(err, w.close(keep))
		}()
	}
	f := &floods{own: o.Own, random: rand.New(rand.NewPCG(1, 2)), sent: make(map[flood.Flow]bool), summary: &FloodSummary{Findings: []FloodFinding{}}}
	for p, err := range r.All() {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil && p.Time.IsZero() {
			err = fmt.Errorf("packet %d has no time: floods are searched by the times of the capture", p.Number)
		}
		if err != nil {
			return f.summary, err
		}
		out := f.packet(&p)
		if w == nil {
			continue
		}
		for len(w.lists) < len(f.applied) {
			w.lists = append(w.lists, engine.List{Name: f.applied[len(w.lists)].String()})
		}
		if err := w.write(out); err != nil {
			return f.summary, err
		}
	}
	f.second()
	return f.summary, nil
}

// packet takes up a packet, and returns what the rules that were found before it do with it.
func (f *floods) packet(p *capture.Packet) verdict.Outcome {
	f.summary.Packets++
	if f.begin.IsZero() {
		f.begin = p.Time.Truncate(time.Second)
		f.now = f.begin
	}
	for quiet := 0; !p.Time.Before(f.now.Add(time.Second)); quiet++ {
		if quiet == flood.BaselineSeconds { // a gap: more silence would say no more
			f.now = p.Time.Truncate(time.Second)
			break
		}
		f.second()
		f.now = f.now.Add(time.Second)
	}
	r, ok := flood.Of(p.Data, p.Length)
	if !ok {
		return verdict.Outcome{}
	}
	if slices.ContainsFunc(f.own, func(own netip.Prefix) bool { return own.Contains(r.Source()) }) {
		f.send(&r)
		return verdict.Outcome{}
	}
	r.Conversing = f.conversing(&r)
	f.packets++
	if len(f.sample) < flood.MaxSample {
		f.sample = append(f.sample, r)
	} else if i := f.random.Uint64N(f.packets); i < flood.MaxSample {
		f.sample[i] = r
	}
	for i := range f.applied {
		if f.applied[i].Matches(&r) {
			f.summary.Dropped++
			return verdict.Outcome{Action: verdict.Drop, Reason: verdict.Blocked, List: i + 1}
		}
	}
	return verdict.Outcome{}
}

// peerOf returns the conversation of an incoming packet. A ping and its answer are of different types,
// and are known by their addresses, as is a later fragment, which has no ports.
func peerOf(r *flood.Record) flood.Flow {
	k := r.Flow()
	if !key.HasPorts(k.Protocol) {
		k.SrcPort, k.DstPort = 0, 0
	}
	return k
}

func (f *floods) send(r *flood.Record) {
	k := peerOf(r).Reverse()
	for range 2 { // with its ports, and by its addresses alone, for later fragments
		if !f.sent[k] {
			if len(f.sent) >= maxSent {
				f.before, f.sent = f.sent, make(map[flood.Flow]bool)
			}
			f.sent[k] = true
		}
		k.SrcPort, k.DstPort = 0, 0
	}
}

func (f *floods) conversing(r *flood.Record) flood.Conversing {
	if len(f.own) == 0 {
		return flood.Unknown
	}
	if k := peerOf(r); f.sent[k] || f.before[k] {
		return flood.Conversant
	}
	return flood.Stranger
}

// second ends a second.
func (f *floods) second() {
	found := f.detector.Second(f.sample, f.packets)
	f.sample, f.packets = f.sample[:0], 0
	if found == nil {
		return
	}
	x := FloodFinding{Seconds: f.now.Add(time.Second).Sub(f.begin).Seconds(), Rate: found.Rate, Usual: found.Usual, Of: found.Of,
		Verdict: found.Kind.String(), Proposed: found.Proposed && len(found.Rules) > 0}
	for i := range found.Rules {
		u := &found.Rules[i]
		x.Rules = append(x.Rules, FloodRule{Pattern: u.String(), Rate: u.Rate, Covered: u.Covered, Low: u.Share.Low, High: u.Share.High,
			Sources: u.Evidence.Sources, Packets: u.Packets.Estimate, Conversations: u.Conversations.Estimate})
		if !found.Proposed {
			f.applied = append(f.applied, u.Rule)
		}
	}
	f.summary.Findings = append(f.summary.Findings, x)
}

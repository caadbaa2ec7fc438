package observe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/filter/flood"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

const (
	floodEnd      = 10               // seconds as usual after which a flood is over
	floodBegins   = 2                // seconds above the usual after which it is one, without a rule
	floodLeast    = 0.1              // of its largest rate, that a flood has with its rules as long as it lasts
	becomesUsual  = time.Hour        // after which what no rule matches is usual
	leastKept     = 10 * time.Second // for which a flood without a rule must last to be remembered
	goesOn        = 60               // seconds after a start in which a flood goes on that was under way before
	floodsKept    = 100              // past ones
	baselineSaved = 10 * time.Minute // the longest time after which the baseline is saved
	baselineOld   = 24 * time.Hour   // says nothing any more
	floodsFile    = 4 << 20          // bytes of the largest file of floods
	baselineFile  = 2 << 20          // and of a baseline
)

// Floods finds floods in the sampled seconds, and remembers them. Where a state directory is given,
// the baseline outlasts the daemon, so that no flood becomes usual by a restart. Methods may be called
// concurrently.
type Floods struct {
	looking  sync.Mutex // guards the following; held for some 100 ms in a suspect second
	detector flood.Detector
	random   *rand.Rand
	now      *api.Flood // nil: there is none
	rules    []flood.Rule
	before   *api.Flood // was under way when the daemon before ended, and may go on
	above    int        // seconds above the usual without a rule, before a flood
	quiet    int        // seconds as usual during a flood
	matched  float64    // packets a second that are of the flood
	peak     float64    // of matched
	seconds  int        // looked at
	begins   time.Time  // of the first second above the usual
	last     time.Time  // the end of the flood's last second, by now
	saved    time.Time
	sample   []flood.Record // of the last second with enough packets of the flood
	path     string         // of the baseline, and with .json of floods; "": neither is saved
	write    func(path string, parts ...[]byte) error

	present atomic.Pointer[api.Floods]
}

// Present returns what is known of floods.
func (f *Floods) Present() api.Floods {
	if p := f.present.Load(); p != nil {
		return *p
	}
	return api.Floods{Time: time.Now()}
}

// Second looks at a sampled second. drops says for which reasons packets are dropped. It returns the
// flood that has begun with this second, or is over and kept, and an error if that could not be saved.
func (f *Floods) Second(s *Second, drops func(verdict.Reason) bool) (begun, ended *api.Flood, err error) {
	f.looking.Lock()
	defer f.looking.Unlock()
	if f.random == nil {
		f.random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	sample, packets := even(s, f.random)
	f.seconds++
	found := f.detector.Second(sample, packets)
	if found == nil && f.now == nil {
		f.above = 0
	} else if found != nil && f.now == nil {
		if f.above++; f.above == 1 {
			f.begins = s.Begin
		}
		if len(found.Rules) > 0 || f.above == floodBegins {
			f.now = &api.Flood{Begin: f.begins, Of: found.Of, Usual: found.Usual, Rules: []api.FloodRule{}}
			f.quiet, f.peak, f.rules, f.sample = 0, 0, nil, nil
			if f.before != nil && f.seconds < goesOn { // it has gone on
				f.now.Begin, f.now.Usual = f.before.Begin, f.before.Usual
			}
			f.before = nil
			begun = f.now
		}
	}
	past := f.Present().Past
	if f.now != nil {
		f.take(found)
		f.describe(sample, float64(packets), drops)
		if f.over(found, s.End) {
			end := f.last
			f.now.End = &end
			if f.now.Kind == api.FloodRuled || f.last.Sub(f.now.Begin) >= leastKept {
				ended = f.now
				past = remember(past, f.now)
			}
			f.now, f.above, begun = nil, 0, nil
			f.detector.Forget()
		}
	}
	if f.before != nil && f.seconds >= goesOn { // it ended while no daemon ran
		past = remember(past, f.before)
		f.before = nil
	}
	p := &api.Floods{Time: s.End, Sampled: true, Quiet: f.detector.Quiet(), Rate: float64(packets), Past: past}
	p.Usual, p.Varies = f.detector.Usual()
	if f.now != nil {
		now := *f.now
		now.Rules = slices.Clone(now.Rules)
		p.Now = &now
	}
	f.present.Store(p)
	if begun != nil {
		begun = p.Now
	}
	if begun != nil || ended != nil || s.End.Sub(f.saved) >= baselineSaved {
		err = f.save(s.End)
	}
	return begun, ended, err
}

// remember returns the floods that are over with one more.
func remember(past []api.Flood, x *api.Flood) []api.Flood {
	return append([]api.Flood{*x}, past[:min(len(past), floodsKept-1)]...)
}

// Blind says that nothing is sampled.
func (f *Floods) Blind() {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.detector, f.now, f.above = flood.Detector{}, nil, 0
	f.present.Store(&api.Floods{Time: time.Now(), Past: f.Present().Past})
}

// take takes what was found into the flood.
func (f *Floods) take(found *flood.Finding) {
	if found == nil {
		return
	}
	if len(found.Rules) == 0 {
		if len(f.rules) == 0 {
			f.now.Kind = api.FloodUsers
			if found.Kind == flood.NothingInIt {
				f.now.Kind = api.FloodNothing
			}
		}
		return
	}
	f.now.Kind = api.FloodRuled
	keep := len(f.detector.Rules())
	if !found.Proposed {
		keep -= len(found.Rules)
	}
	f.rules, f.now.Rules = f.rules[:keep], f.now.Rules[:keep] // the others are found again in each second
	for i := range found.Rules {
		r := floodRule(&found.Rules[i])
		r.Proposed = found.Proposed
		f.rules, f.now.Rules = append(f.rules, found.Rules[i].Rule), append(f.now.Rules, r)
	}
}

// describe says what the flood is in this second.
func (f *Floods) describe(sample []flood.Record, packets float64, drops func(verdict.Reason) bool) {
	per := make([]int, len(f.rules))
	sources, destinations := make(map[netip.Addr]int), make(map[netip.Addr]int)
	of, dropped, conversing := 0, 0, 0
	for i := range sample {
		r := &sample[i]
		if rule := slices.IndexFunc(f.rules, func(u flood.Rule) bool { return u.Matches(r) }); rule >= 0 {
			per[rule]++
		} else if len(f.rules) > 0 {
			continue
		}
		of++
		sources[r.Source()]++
		destinations[r.Destination()]++
		if drops(verdict.Reason(r.Reason)) {
			dropped++
		}
		if r.Conversing == flood.Conversant {
			conversing++
		}
	}
	now := f.now
	now.Rate, now.Peak = packets, max(now.Peak, packets)
	all := float64(max(1, len(sample)))
	for i, n := range per {
		now.Rules[i].Share = float64(n) / all
	}
	f.matched = float64(of) / all * packets
	f.peak = max(f.peak, f.matched)
	if of < flood.MinRecords { // says nothing: what was said stays
		return
	}
	f.sample = sample
	largest := func(of map[netip.Addr]int) []netip.Addr {
		return ordered.Of(maps.Keys(of), func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(of[b], of[a]), a.Compare(b)) })
	}
	to := largest(destinations)[0]
	now.Destination, now.DestinationShare = to.String(), float64(destinations[to])/float64(of)
	from, carried := largest(sources), 0
	for _, a := range from[:min(len(from), 100)] {
		carried += sources[a]
	}
	now.Sources, now.LargestSources = distinct(maps.Values(sources)), float64(carried)/float64(of)
	now.Dropped, now.Conversing = float64(dropped)/float64(of), float64(conversing)/float64(of)
}

// over reports whether the flood has ended with a second.
func (f *Floods) over(found *flood.Finding, end time.Time) bool {
	switch {
	case found != nil, len(f.detector.Rules()) > 0 && f.matched >= floodLeast*f.peak:
		f.quiet, f.last = 0, end
	default:
		f.quiet++
	}
	if len(f.rules) == 0 && end.Sub(f.now.Begin) > becomesUsual {
		f.detector = flood.Detector{}
		return true
	}
	return f.quiet >= floodEnd
}

// even returns a sample of a second in which all packets have equal chances, of IP, and how many
// of these there were in a second.
func even(s *Second, random *rand.Rand) (sample []flood.Record, packets uint64) {
	most, all, ip := 0.0, 0.0, 0.0
	for i := range s.Records {
		w := s.Records[i].Weight
		most, all = max(most, w), all+w
		if s.Records[i].IP {
			ip += w
		}
	}
	for i := range s.Records {
		r := &s.Records[i]
		if r.IP && (r.Weight >= most || random.Float64()*most < r.Weight) && len(sample) < flood.MaxSample {
			sample = append(sample, r.Record)
		}
	}
	if all == 0 {
		return nil, 0
	}
	return sample, uint64(float64(s.Packets) * ip / all / max(s.End.Sub(s.Begin).Seconds(), 1e-3))
}

// floodsSaved is the file of floods.
type floodsSaved struct {
	Saved time.Time   `json:"saved"`
	Now   *api.Flood  `json:"now,omitempty"`
	Past  []api.Flood `json:"past"`
}

// Keep reads what was saved at a path, and saves there from now on, by write.
func (f *Floods) Keep(path string, write func(path string, parts ...[]byte) error) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.path, f.write = path, write
	text, err := readAtMost(path+".json", floodsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var was floodsSaved
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return fmt.Errorf("floods of before are not known: %w", err)
	}
	f.present.Store(&api.Floods{Time: was.Saved, Past: was.Past[:min(len(was.Past), floodsKept)]})
	if age := time.Since(was.Saved).Abs(); age > baselineOld {
		if was.Now != nil {
			f.before = was.Now
			f.seconds = goesOn
		}
		return nil
	}
	f.before = was.Now
	b, err := readAtMost(path, baselineFile)
	if err == nil {
		err = f.detector.UnmarshalBinary(b)
	}
	if err != nil {
		return fmt.Errorf("what traffic is usual is learned anew: %w", err)
	}
	return nil
}

func readAtMost(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

// Save saves the floods and the baseline.
func (f *Floods) Save() error {
	f.looking.Lock()
	defer f.looking.Unlock()
	return f.save(time.Now())
}

func (f *Floods) save(now time.Time) error {
	if f.path == "" {
		return nil
	}
	f.saved = now
	p := f.Present()
	was := floodsSaved{Saved: now, Now: p.Now, Past: p.Past}
	if was.Now == nil {
		was.Now = f.before
	}
	if was.Now != nil && was.Now.End == nil {
		last := *was.Now
		last.End = &now // as far as it was seen
		was.Now = &last
	}
	text, err := json.Marshal(was)
	if err != nil {
		return err
	}
	b, err := f.detector.AppendBinary(nil)
	if err != nil {
		return err
	}
	return errors.Join(f.write(f.path, b), f.write(f.path+".json", append(text, '\n')))
}

// floodRule describes a rule that a detector has found.
func floodRule(u *flood.Found) api.FloodRule {
	r := api.FloodRule{
		Pattern: u.String(), Name: u.Name(), Rate: u.Rate, Share: u.Share.Estimate, Covered: u.Covered, Sources: u.Evidence.Sources,
		Packets: floodShare(u.Packets), Conversations: floodShare(u.Conversations),
	}
	for _, a := range u.Rule.Sources {
		r.Addresses = append(r.Addresses, a.String())
	}
	return r
}

func floodShare(s flood.Share) api.FloodShare {
	return api.FloodShare{Hits: s.Hits, Of: s.Of, Low: s.Low, High: s.High}
}

package flood

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// What a finding takes, and what it may cost.
const (
	BaselineSeconds   = 24    // the last quiet ones, with which a second is compared
	BaselineRecords   = 640   // that are kept of each
	MinQuiet          = 10    // seconds of baseline below which rules are only to be proposed
	MinRecords        = 100   // that a rule must have matched
	MaxRules          = 4     // of one flood, together
	MaxCollateral     = 0.008 // share of normal packets, and of normal conversations, that all rules together match
	searchCollateral  = 0.75  // of MaxCollateral, as the search sees only a part of the baseline
	minExcess         = 0.35  // of the usual rate
	minRate           = 200   // packets a second above the usual rate
	minBits           = 2e6   // bits a second above the usual rate
	minCovered        = 0.15  // of the excess that a rule matches
	maxConversing     = 0.01  // of the packets that a rule matches
	asUsers           = 0.5   // share of an excess in conversations from which on it is as users behave
	firstSeconds      = 3     // of a flood, in which all that is above the usual is of it
	burst             = 2     // seconds in a row that are suspect without a finding, and may become usual
	quietWait         = 10    // seconds for which a quiet one waits before it is usual
	suspectWait       = 60    // or this long, where one was suspect in this time
	collateralPenalty = 8
)

// Kind says what an excess was found to be.
type Kind uint8

const (
	Ruled       Kind = iota // rules match it
	AsUsers                 // it is in conversations: no rule
	NothingInIt             // nothing in its headers distinguishes it from users
	numKinds
)

// String returns the sentence about an excess of this kind.
func (k Kind) String() string {
	return [numKinds]string{"rules match it", "as users behave: no rule", "nothing in the headers distinguishes it from users: SYN cookies or a limit"}[k]
}

// Share is how many hits there are of a number of things, which they are a sample of: an estimate
// with the bounds of its 95 % confidence interval (Wilson, 1927).
type Share struct {
	Hits, Of            int
	Low, Estimate, High float64
}

// NewShare returns the share of n records that hits of them are.
func NewShare(hits, n int) Share {
	if n == 0 {
		return Share{High: 1}
	}
	p := float64(hits) / float64(n)
	low, high := Wilson(p, float64(n))
	return Share{hits, n, low, p, high}
}

// Wilson returns the bounds of the 95 % confidence interval of a share that n records have, n > 0.
func Wilson(share, n float64) (low, high float64) {
	const z = 1.96
	zz := z * z / n
	middle, off := share+zz/2, math.Sqrt(zz*share*(1-share)+zz*zz/4)
	return max(0, (middle-off)/(1+zz)), min(1, (middle+off)/(1+zz))
}

// Evidence has the counts of a rule's packets in a sample.
type Evidence struct {
	Records       int     // of the second that the rule matched
	Share         Share   // of the second's packets
	Rate          float64 // packets a second
	Covered       float64 // share of the excess
	Sources       int     // distinct ones among the records
	Packets       Share   // of the baseline that the rule matches
	Conversations Share   // of the baseline of which it matches a packet
	Conversing    Share   // of the packets that it matches
}

// Found is a rule with its evidence.
type Found struct {
	Rule
	Evidence
}

// Finding describes a suspect second.
type Finding struct {
	Kind  Kind
	Rules []Found // new ones
	// Proposed rules are not active, and are to be tried first: the baseline is too short, or a flood
	// is under way that goes elsewhere.
	Proposed    bool
	Rate, Usual float64 // packets a second; without those of earlier rules
	Of          string  // what is above the usual: packets, bits, or a class of traffic
}

// Classes of traffic, each of which may make a second suspect.
const (
	classSYN = iota
	classTCP
	classWeb // UDP to or from ports of the service
	classDNS
	classUDP
	classICMP
	classFragment
	classGRE
	classESP
	classOther
	numClasses
)

var classNames = [numClasses]string{"SYN", "TCP without SYN", "UDP of port 443", "UDP of port 53", "other UDP", "ICMP", "fragments", "GRE", "ESP", "other protocols"}

func (r *Record) class() int {
	port := func(p uint16) bool { return r.SrcPort == p || r.DstPort == p }
	switch {
	case r.Fragment != Whole:
		return classFragment
	case r.Protocol == protoTCP && r.Flags&0x12 == 2:
		return classSYN
	case r.Protocol == protoTCP:
		return classTCP
	case r.Protocol == protoUDP && port(443):
		return classWeb
	case r.Protocol == protoUDP && port(53):
		return classDNS
	case r.Protocol == protoUDP:
		return classUDP
	case r.Protocol == protoICMP, r.Protocol == protoICMPv6:
		return classICMP
	case r.Protocol == protoGRE:
		return classGRE
	case r.Protocol == protoESP:
		return classESP
	}
	return classOther
}

// second has a sample of a second and its rates.
type second struct {
	records []Record
	rates   [2 + numClasses]float64 // packets, bits, classes
	age     int                     // seconds for which it has waited
	suspect bool
}

// Detector finds floods, second by second. It is not safe for concurrent use.
type Detector struct {
	quiet []second // the baseline, the oldest first
	// A flood may begin with little, and pause: what came before a suspect second may be of it. So
	// seconds wait before they are of the baseline, and do not get there if rules match them that
	// are found meanwhile.
	waiting []second
	wary    int    // seconds for which they wait longer
	excess  int    // suspect seconds without rules, less the quiet ones after them; at most quietWait
	rules   []Rule // that are active
	hit     []Rule // destinations of the flood: rules of one condition
	counts  map[netip.Addr]int
	seconds int // that counts has
	age     int // of the flood, since its first rule
}

// Rules returns the rules found so far, in the order in which they were found.
func (d *Detector) Rules() []Rule { return d.rules }

// Quiet returns how many quiet seconds are known, at most BaselineSeconds.
func (d *Detector) Quiet() int { return len(d.recent()) }

// Usual returns the mean rate of the quiet seconds and its standard deviation, in packets a second.
func (d *Detector) Usual() (mean, deviation float64) { return rate(d.recent(), 0) }

// Base returns the records of the quiet seconds.
func (d *Detector) Base() (all []Record) {
	for i := range d.quiet {
		all = append(all, d.quiet[i].records...)
	}
	return all
}

// last returns the last seconds of lists that were as usual, the latest list first.
func last(lists ...[]second) (all []*second) {
	for _, seconds := range lists {
		for i := len(seconds) - 1; i >= 0 && len(all) < BaselineSeconds; i-- {
			if !seconds[i].suspect {
				all = append(all, &seconds[i])
			}
		}
	}
	return all
}

// recent returns the last quiet seconds, those included that wait: rates follow slow changes at once.
func (d *Detector) recent() []*second { return last(d.waiting, d.quiet) }

// rate returns the mean of a meter in seconds, of which there are some, and its deviation.
func rate(seconds []*second, of int) (mean, deviation float64) {
	square, n := 0.0, float64(max(1, len(seconds)))
	for _, s := range seconds {
		x := s.rates[of]
		mean, square = mean+x/n, square+x*x/n
	}
	return mean, math.Sqrt(max(0, square-mean*mean))
}

// Forget ends the flood: its rules no longer count as active.
func (d *Detector) Forget() {
	d.rules, d.hit, d.counts, d.seconds, d.age = nil, nil, nil, 0, 0
	d.wary = suspectWait
}

// Second takes up a second: a sample of its packets with equal chances, and how many there were. It
// returns what was found in a second that is suspect, and nil for one that is as usual. What packets
// the rules found match is not looked at again.
func (d *Detector) Second(sample []Record, packets uint64) *Finding {
	if len(d.rules) > 0 {
		d.age++
	}
	s := d.residual(sample, packets)
	d.wait()
	of, usual, suspect := d.suspect(&s)
	if !suspect {
		if len(d.rules) == 0 && d.excess <= burst { // never from a flood
			d.learn(s)
		}
		d.excess = max(0, d.excess-1)
		return nil
	}
	d.wary = suspectWait
	f := d.search(&s, of, usual)
	if len(f.Rules)+len(d.rules) == 0 && len(d.quiet) <= MinQuiet { // these have not waited
		f = d.searchEarly(&s, of, usual, f)
	}
	if d.waiting = takeBack(d.waiting, f.Rules); len(f.Rules) > 0 || len(d.rules) > 0 {
		return f
	}
	if d.excess = min(d.excess+1, quietWait); d.excess > burst { // it lasts
		d.waiting = slices.DeleteFunc(d.waiting, func(s second) bool { return s.age <= quietWait })
	} else {
		s.suspect = true
		d.learn(s)
	}
	return f
}

func (d *Detector) residual(sample []Record, packets uint64) second {
	s := second{records: make([]Record, 0, len(sample))}
	scale := 0.0
	if len(sample) > 0 {
		scale = float64(packets) / float64(len(sample))
	}
next:
	for i := range sample {
		r := &sample[i]
		for j := range d.rules {
			if d.rules[j].Matches(r) {
				continue next
			}
		}
		s.records = append(s.records, *r)
		s.rates[0] += scale
		s.rates[1] += scale * 8 * float64(r.Length)
		s.rates[2+r.class()] += scale
	}
	return s
}

// thin keeps of a second what a baseline keeps.
func thin(s second) second {
	s.records = pick(s.records, BaselineRecords)
	return s
}

// pick returns n of the records, or all, evenly.
func pick(records []Record, n int) []Record {
	if len(records) <= n {
		return records
	}
	picked := make([]Record, n)
	for i := range picked {
		picked[i] = records[i*len(records)/n]
	}
	return picked
}

// learn makes a second wait until it is usual. The first ones are usual at once.
func (d *Detector) learn(s second) {
	s = thin(s)
	if len(d.quiet) < MinQuiet && !s.suspect {
		d.quiet = append(d.quiet, s)
	} else {
		d.waiting = append(d.waiting, s)
	}
}

// wait lets a second pass. The seconds that have waited long enough become usual.
func (d *Detector) wait() {
	long := quietWait
	if d.wary > 0 {
		d.wary--
		long = suspectWait
	}
	n := 0
	for i := range d.waiting {
		s := &d.waiting[i]
		if s.age++; s.age >= long {
			n++
		}
	}
	for _, s := range d.waiting[:n] {
		s.suspect = false
		d.quiet = append(d.quiet, s)
	}
	d.waiting = slices.Delete(d.waiting, 0, n)
	d.quiet = slices.Delete(d.quiet, 0, max(0, len(d.quiet)-BaselineSeconds))
}

// searchEarly searches with the first half of a short baseline, and forgets of the other half what
// rules match that it finds. Without any, it returns what was found before.
func (d *Detector) searchEarly(s *second, of int, usual float64, before *Finding) *Finding {
	all, half := d.quiet, max(3, len(d.quiet)/2)
	d.quiet = all[:half:half]
	counts, seconds := d.counts, d.seconds
	d.counts, d.seconds = nil, 0 // the second is counted once
	f := d.search(s, of, usual)
	d.counts, d.seconds = counts, seconds
	if len(f.Rules) == 0 {
		d.quiet = all
		return before
	}
	d.quiet = append(d.quiet, takeBack(all[half:], f.Rules)...)
	return f
}

// takeBack returns the seconds of which rules match no more than they may.
func takeBack(seconds []second, rules []Found) []second {
	return slices.DeleteFunc(seconds, func(s second) bool {
		for i := range rules {
			packets, conversations := Collateral([]Rule{rules[i].Rule}, s.records)
			if max(packets.Estimate, conversations.Estimate) > MaxCollateral {
				return true
			}
		}
		return false
	})
}

// suspect returns the first meter that is far above its usual rate, and that rate. It is above that of
// the last seconds, and of the baseline, in which there may be bursts.
func (d *Detector) suspect(s *second) (of int, rate float64, ok bool) {
	if len(d.quiet) < 3 {
		return 0, 0, false
	}
	recent, quiet := d.recent(), last(d.quiet)
	for of := range s.rates {
		if mean, ok := above(recent, s, of); ok {
			if _, ok := above(quiet, s, of); ok {
				return of, mean, true
			}
		}
	}
	return 0, 0, false
}

// above reports whether a meter of a second is far above that of others, and their mean.
func above(others []*second, s *second, of int) (mean float64, is bool) {
	mean, deviation := rate(others, of)
	least, factor := float64(minRate), minExcess
	if of == 1 {
		least = minBits
	}
	if of > 0 {
		factor = 1 // what is rarer varies more
	}
	if n := len(others); n < MinQuiet { // how far it varies is not known yet
		factor *= MinQuiet / float64(n)
	}
	return mean, s.rates[of]-mean > max(least, factor*mean, 4*deviation)
}

// only returns the records that count for a meter: those of a class, or of all as many as they have
// bytes.
func only(records []Record, of, most int) []Record {
	switch {
	case of == 0:
		return pick(records, most)
	case of > 1:
		var some []Record
		for i := range records {
			if records[i].class() == of-2 {
				some = append(some, records[i])
			}
		}
		return pick(some, most)
	}
	bytes, sum := 0, 0
	for i := range records {
		bytes += int(records[i].Length)
	}
	some := make([]Record, 0, most)
	for i := range records {
		for sum += int(records[i].Length) * most; bytes > 0 && sum >= bytes; sum -= bytes {
			some = append(some, records[i])
		}
	}
	return some
}

// search finds rules for an excess until too little is left of it.
func (d *Detector) search(s *second, of int, usual float64) *Finding {
	f := &Finding{Rate: s.rates[0], Proposed: len(d.quiet) < MinQuiet, Of: "packets"}
	if of == 1 {
		f.Of = "bits"
	} else if of > 1 {
		f.Of = classNames[of-2]
	}
	f.Usual, _ = d.Usual()
	base := d.Base()
	all := usual
	if of > 1 { // of the baseline, records of all classes are kept
		all = f.Usual
	}
	g := newSpace(only(s.records, of, maxCurrent), base, s.rates[of], usual, all)
	f.Kind = g.kind()
	spent := 0.0 // of MaxCollateral, by the rules found
	for len(d.rules)+len(f.Rules) < MaxRules && g.left() > minCovered {
		u, ok := g.best(d.hit, searchCollateral*(MaxCollateral-spent))
		if !ok {
			u, ok = d.sources(s)
		}
		if !ok {
			break
		}
		e := d.evidence(&u, s, base, g)
		all := append(slices.Clone(d.rules), u)
		for i := range f.Rules {
			all = append(all, f.Rules[i].Rule)
		}
		packets, conversations := Collateral(all, base)
		if e.Records < MinRecords || max(packets.Estimate, conversations.Estimate) > MaxCollateral || e.Conversing.Estimate > maxConversing {
			break
		}
		f.Rules, spent = append(f.Rules, Found{u, e}), max(packets.Estimate, conversations.Estimate)
		g.subtract(&u)
	}
	if len(f.Rules) == 0 {
		return f
	}
	f.Kind = Ruled
	d.attribute(f)
	if f.Proposed {
		return f
	}
	for i := range f.Rules {
		d.rules = append(d.rules, f.Rules[i].Rule)
		if c := f.Rules[i].has(DestinationPrefix); c != nil {
			d.hit = append(d.hit, Rule{Conditions: []Condition{*c}})
		}
	}
	return f
}

// attribute keeps of the rules found those of the flood under way. While it lasts, the baseline
// stands still, and any other change of traffic looks like a part of it. So what is found after its
// first seconds is of the flood only if it goes to where the flood goes; other rules are proposed, to
// be tried first.
func (d *Detector) attribute(f *Finding) {
	if d.age <= firstSeconds || len(d.hit) == 0 {
		return
	}
	of := slices.DeleteFunc(slices.Clone(f.Rules), func(x Found) bool {
		c := x.has(DestinationPrefix)
		return c == nil || !slices.ContainsFunc(d.hit, func(u Rule) bool {
			p := u.Conditions[0].Prefix
			return p.Bits() <= c.Prefix.Bits() && p.Contains(c.Prefix.Addr())
		})
	})
	if len(of) == 0 {
		f.Proposed = true
	} else {
		f.Rules = of
	}
}

// evidence says what a rule matches.
func (d *Detector) evidence(u *Rule, s *second, base []Record, g *space) Evidence {
	sources := make(map[[16]byte]bool)
	conversing := 0
	var e Evidence
	for i := range s.records {
		if r := &s.records[i]; u.Matches(r) {
			e.Records++
			sources[r.Src] = true
			if r.Conversing == Conversant {
				conversing++
			}
		}
	}
	e.Share, e.Sources, e.Conversing = NewShare(e.Records, len(s.records)), len(sources), NewShare(conversing, e.Records)
	e.Rate = e.Share.Estimate * s.rates[0]
	e.Covered = g.covered(g.setOf(u))
	e.Packets, e.Conversations = Collateral([]Rule{*u}, base)
	return e
}

// Collateral returns what share of packets, and of conversations, rules match together.
func Collateral(rules []Rule, base []Record) (packets, conversations Share) {
	hits := 0
	hit := make(map[Flow]bool)
	for i := range base {
		r := &base[i]
		matches := slices.ContainsFunc(rules, func(u Rule) bool { return u.Matches(r) })
		if matches {
			hits++
		}
		hit[r.Flow()] = hit[r.Flow()] || matches
	}
	hitConversations := 0
	for _, is := range hit {
		if is {
			hitConversations++
		}
	}
	return NewShare(hits, len(base)), NewShare(hitConversations, len(hit))
}

// sources returns a rule for the sources that send far more than any usually does of the traffic above
// the usual: SYNs, or UDP. The sample of each second of a flood adds to what is known of them.
func (d *Detector) sources(s *second) (Rule, bool) {
	class, most := 0, 0.0
	usual := [numClasses]float64{}
	for i := range d.quiet {
		for c := range usual {
			usual[c] += d.quiet[i].rates[2+c] / float64(len(d.quiet))
		}
	}
	for c := range usual {
		if x := s.rates[2+c] - usual[c]; x > most {
			class, most = c, x
		}
	}
	limit := 0
	for i := range d.quiet {
		counts := make(map[netip.Addr]int)
		for j := range d.quiet[i].records {
			if r := &d.quiet[i].records[j]; r.class() == class {
				counts[r.Source()]++
				limit = max(limit, counts[r.Source()])
			}
		}
	}
	if d.counts == nil {
		d.counts = make(map[netip.Addr]int)
	}
	d.seconds++
	var proto *Record
	for i := range s.records {
		r := &s.records[i]
		if r.class() != class || r.Conversing == Conversant {
			continue
		}
		proto = r
		if _, known := d.counts[r.Source()]; known || len(d.counts) < maxSources {
			d.counts[r.Source()]++
		}
	}
	var u Rule
	for a, n := range d.counts {
		if n > limit+1+d.seconds {
			u.Sources = append(u.Sources, a)
		}
	}
	if proto == nil || len(u.Sources) == 0 {
		return u, false
	}
	slices.SortFunc(u.Sources, netip.Addr.Compare)
	u = u.with(Condition{Field: Protocol, Lo: uint32(proto.Protocol), Hi: uint32(proto.Protocol)})
	if class == classSYN {
		u = u.with(Condition{Field: Flags, Lo: 2, Hi: 2})
	}
	return u, true
}

const maxSources = 1 << 14 // that are counted during a flood

// commonPrefix returns the longest prefix of the usual lengths that has all addresses.
func commonPrefix(addrs [][16]byte, v4 bool) (netip.Prefix, bool) {
	if len(addrs) == 0 {
		return netip.Prefix{}, false
	}
	common := 128
	for i := range addrs[1:] {
		for w := range 2 {
			x := binary.BigEndian.Uint64(addrs[0][w*8:]) ^ binary.BigEndian.Uint64(addrs[i+1][w*8:])
			if x != 0 {
				common = min(common, w*64+bits.LeadingZeros64(x))
				break
			}
		}
	}
	lengths := []int{128, 64, 56, 48}
	if v4 {
		lengths, common = []int{32, 28, 24, 22, 20, 16}, common-96
	}
	for _, n := range lengths {
		if n <= common {
			return netip.PrefixFrom(netip.AddrFrom16(addrs[0]).Unmap(), n).Masked(), true
		}
	}
	return netip.Prefix{}, false
}

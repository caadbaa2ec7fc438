package observe

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/durable"
	"weir/control/stage/sampler"
	"weir/filter/flood"
	"weir/filter/verdict"
	"weir/tests/must"
)

// scene makes seconds of traffic, one after the other.
type scene struct {
	random *rand.Rand
	now    time.Time
}

func newScene() *scene {
	return &scene{rand.New(rand.NewPCG(58, 1)), time.Date(2026, 7, 1, 3, 0, 0, 0, time.UTC)}
}

var target = netip.MustParseAddr("203.0.113.10").As16()

func (s *scene) packet(sport, dport, length int) flood.Record {
	r := s.random
	return flood.Record{
		Src: netip.AddrFrom4([4]byte{byte(11 + r.IntN(90)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}).As16(), Dst: target, IPv4: true,
		Protocol: 17, SrcPort: uint16(sport), DstPort: uint16(dport), Length: uint16(length), TTL: 60, ID: uint16(r.Uint32()), Conversing: flood.Stranger,
	}
}

// second has 300 packets of users, and n of something else.
func (s *scene) second(n int, more func() flood.Record) *Second {
	second := &Second{Begin: s.now, End: s.now.Add(time.Second), Packets: uint64(300 + n)}
	s.now = second.End
	add := func(r flood.Record) {
		second.Records = append(second.Records, sampler.Record{Record: r, IP: true, Weight: 1})
	}
	for range 300 {
		r := s.packet(1024+s.random.IntN(60000), 443, 60+s.random.IntN(1200))
		r.Conversing = flood.Conversant
		add(r)
	}
	for range n {
		add(more())
	}
	return second
}

func (s *scene) answers() flood.Record { return s.packet(123, 443, 468) }

func noDrops(verdict.Reason) bool { return false }

// quiet looks at seconds without a flood.
func (s *scene) quiet(t *testing.T, f *Floods, n int) {
	t.Helper()
	for range n {
		if begun, ended, err := f.Second(s.second(0, nil), noDrops); begun != nil || ended != nil || err != nil {
			t.Fatalf("%+v, %+v, %v", begun, ended, err)
		}
	}
}

// A flood is known from its first second on, and over ten seconds after its last. A pattern stops it.
func TestFloods(t *testing.T) {
	f, s := new(Floods), newScene()
	s.quiet(t, f, 12)
	began := s.now
	begun, _, err := f.Second(s.second(2700, s.answers), noDrops)
	if err != nil || begun == nil {
		t.Fatalf("%+v, %v", begun, err)
	}
	if begun.Kind != api.FloodRuled || !begun.Begin.Equal(began) || len(begun.Rules) != 1 || begun.Destination != "203.0.113.10" || begun.Usual != 300 {
		t.Errorf("%+v", begun)
	}
	r := begun.Rules[0]
	if r.Name != "NTP answers" || r.Packets.Hits != 0 || r.Packets.Of != flood.MinQuiet*300 || r.Share < 0.89 || r.Share > 0.91 {
		t.Errorf("%+v", r)
	}
	if of := begun.Commands(); len(of) != 1 || of[0] != "weir limit --ttl 10m --trial 2s '"+r.Pattern+"' 0pps" || begun.Do() != "weir flood --apply all" {
		t.Errorf("%q, %q", of, begun.Do())
	}
	for range 5 {
		if begun, ended, _ := f.Second(s.second(2700, s.answers), noDrops); begun != nil || ended != nil {
			t.Fatalf("%+v, %+v", begun, ended)
		}
	}
	blocked := func() flood.Record {
		r := s.answers()
		r.Reason = uint8(verdict.Blocked)
		return r
	}
	f.Second(s.second(2700, blocked), func(reason verdict.Reason) bool { return reason == verdict.Blocked })
	if x := f.Present().Now; x == nil || x.Dropped != 1 || x.Do() != "nothing: weir drops it" || x.Peak != 3000 {
		t.Errorf("%+v", x)
	}
	for i := range 20 {
		// Nothing at all may come in.
		second := &Second{Begin: s.now, End: s.now.Add(time.Second)}
		s.now = second.End
		if _, ended, _ := f.Second(second, noDrops); (ended != nil) != (i == floodEnd-1) {
			t.Fatalf("second %d: %+v", i, ended)
		}
	}
	if p := f.Present(); p.Now != nil || len(p.Past) != 1 || !p.Past[0].End.Equal(began.Add(7*time.Second)) || p.Past[0].Rules[0].Pattern != r.Pattern {
		t.Errorf("%+v", p)
	}
}

// A flood begins in seconds that are short or long, have little of it, or few records, and pauses: its
// rule is found as soon as it is there again.
func TestFloodsBegin(t *testing.T) {
	type part struct {
		long  time.Duration
		n     int     // packets of the flood
		times float64 // packets for each record
	}
	pause := part{time.Second, 0, 1}
	for name, parts := range map[string][]part{
		"little":                   {{time.Second, 20, 1}},
		"one packet":               {{time.Second, 1, 1}},
		"little, pause":            {{time.Second, 20, 1}, pause, pause, pause},
		"a third of a second":      {{300 * time.Millisecond, 5, 1}, pause, {300 * time.Millisecond, 30, 1}},
		"four seconds":             {{4 * time.Second, 200, 1}, pause, {4 * time.Second, 700, 1}},
		"few records, then pauses": {{time.Second, 60, 10}, pause, {time.Second, 60, 10}, pause, pause},
	} {
		f, s := new(Floods), newScene()
		s.quiet(t, f, 25)
		for _, x := range append(parts, part{time.Second, 2700, 1}) {
			second := s.second(x.n, s.answers)
			if x.times > 1 { // of users, too
				second.Records = second.Records[280:]
			}
			second.Packets = uint64(float64(len(second.Records)) * x.times)
			second.End = second.Begin.Add(x.long)
			s.now = second.End
			if _, _, err := f.Second(second, noDrops); err != nil {
				t.Fatal(err)
			}
		}
		if x := f.Present().Now; x == nil || x.Kind != api.FloodRuled || len(x.Rules) != 1 || x.Rules[0].Proposed || x.Rules[0].Packets.Hits != 0 {
			t.Errorf("%s: %+v", name, x)
		}
	}
}

// What changes while a flood lasts is a rule that is not sure, and the flood's own stays.
func TestFloodsBesideAnother(t *testing.T) {
	f, s := new(Floods), newScene()
	s.quiet(t, f, 12)
	both := false
	more := func() flood.Record {
		if both && s.random.IntN(2) == 0 {
			r := s.packet(5353, 5353, 900)
			r.Dst = netip.MustParseAddr("203.0.113.77").As16()
			return r
		}
		return s.answers()
	}
	for range 6 {
		f.Second(s.second(2700, more), noDrops)
	}
	both = true
	for range 15 { // longer than a flood takes to be over
		f.Second(s.second(2700, more), noDrops)
	}
	x := f.Present().Now
	if x == nil || len(x.Rules) != 2 || x.Rules[0].Name != "NTP answers" || x.Rules[0].Proposed || !x.Rules[1].Proposed || len(x.Commands()) != 1 {
		t.Errorf("%+v", x)
	}
}

// What no rule matches is named by its second second, and what it is is said.
func TestCrowd(t *testing.T) {
	f, s := new(Floods), newScene()
	s.quiet(t, f, 12)
	users := func() flood.Record {
		r := s.packet(1024+s.random.IntN(60000), 443, 60+s.random.IntN(1200))
		r.Conversing = flood.Conversant
		return r
	}
	for i := range 3 {
		begun, _, _ := f.Second(s.second(2700, users), noDrops)
		if (begun != nil) != (i == 1) {
			t.Fatalf("second %d: %+v", i, begun)
		}
	}
	if x := f.Present().Now; x.Kind != api.FloodUsers || x.Conversing < 0.99 || len(x.Commands()) != 0 || !strings.Contains(x.Do(), "users") {
		t.Errorf("%+v", x)
	}
	// The command that it names instead is one.
	if _, command, _ := strings.Cut(f.Present().Now.Do(), "weir limit '"); command == "" {
		t.Error(f.Present().Now.Do())
	} else {
		pattern, rest, _ := strings.Cut(command, "' RATE --")
		per, _, _ := strings.Cut(rest, " --")
		if u, err := flood.ParseRule(pattern + " " + per); err != nil || u.Narrow() != nil || u.Per.Sharing != flood.SharedBySource {
			t.Errorf("%q: %v, %v", command, u, err)
		}
	}
	// What is over soon is not remembered.
	for range floodEnd {
		if _, ended, _ := f.Second(s.second(0, nil), noDrops); ended != nil {
			t.Errorf("%+v", ended)
		}
	}
	if p := f.Present(); p.Now != nil || len(p.Past) != 0 {
		t.Errorf("%+v", p)
	}
	for range 2 {
		f.Second(s.second(2700, users), noDrops)
	}
	// What lasts for an hour becomes usual.
	s.now = s.now.Add(becomesUsual)
	if _, ended, _ := f.Second(s.second(2700, users), noDrops); ended == nil {
		t.Error("it goes on")
	}
}

// A flood goes on over a restart, kill -9 included, and does not become usual by it.
func TestFloodsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "floods")
	f, s := new(Floods), newScene()
	s.now = time.Now() // the age of a file is by the clock
	if err := f.Keep(path, durable.WriteFile); err != nil {
		t.Fatal(err)
	}
	s.quiet(t, f, 12)
	began := s.now
	f.Second(s.second(2700, s.answers), noDrops)
	again := func() *Floods {
		f := new(Floods)
		if err := f.Keep(path, durable.WriteFile); err != nil {
			t.Error(err)
		}
		return f
	}
	next := again()
	begun, _, err := next.Second(s.second(2700, s.answers), noDrops)
	if err != nil || begun == nil || begun.Kind != api.FloodRuled || !begun.Begin.Equal(began) || begun.End != nil {
		t.Fatalf("after kill -9: %+v, %v", begun, err)
	}
	// It ends while no daemon runs.
	next = again()
	s.quiet(t, next, 61)
	if p := next.Present(); len(p.Past) != 1 || p.Past[0].End == nil || p.Now != nil {
		t.Errorf("%+v", p)
	}
	if err := next.Save(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	must.Write(t, path, b)
	damaged := new(Floods)
	if err := damaged.Keep(path, durable.WriteFile); err == nil || !strings.Contains(err.Error(), "checksum") || damaged.detector.Quiet() != 0 || len(damaged.Present().Past) != 1 {
		t.Errorf("a damaged baseline: %v, %+v", err, damaged.Present())
	}
	// Where nothing can be saved, floods are found all the same.
	f = new(Floods)
	if err := f.Keep(filepath.Join(t.TempDir(), "missing", "floods"), durable.WriteFile); err != nil {
		t.Error(err)
	}
	s.now = time.Now()
	var failed error
	for i := range 13 {
		begun, _, err = f.Second(s.second(2700*(i/12), s.answers), noDrops)
		if err != nil {
			failed = err
		}
	}
	if begun == nil || failed == nil {
		t.Errorf("without a disk: %+v, %v", begun, failed)
	}
}

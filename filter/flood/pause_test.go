package flood

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func answer(r *rand.Rand) Record {
	p := packetTo(r, protoUDP, 123, 443)
	p.Length = 468
	return p
}

// stretch is some seconds of the same kind: records of users and of a flood, and how often more packets
// come in than there are records.
type stretch struct {
	seconds, users, flood int
	times                 float64
}

func (x *stretch) of(r *rand.Rand) (sample []Record, packets uint64) {
	sample = append(usual(r, x.users), many(x.flood, func() Record { return answer(r) })...)
	r.Shuffle(len(sample), func(i, j int) { sample[i], sample[j] = sample[j], sample[i] })
	return sample, uint64(float64(len(sample)) * x.times)
}

// learned ends a flood, lets a minute and more pass, and returns how many seconds with records of the
// flood become usual.
func learned(d *Detector, r *rand.Rand) (n int) {
	d.Forget()
	for range suspectWait + quietWait {
		x := stretch{1, 200, 0, 1}
		d.Second(x.of(r))
		if slices.ContainsFunc(d.Base(), func(x Record) bool { return x.SrcPort == 123 }) {
			n++
		}
	}
	return n
}

// TestPauses floods with pauses, and with seconds that have little of the flood: none of it is usual,
// and the rule is found as soon as the flood is there.
func TestPauses(t *testing.T) {
	users, full := stretch{1, 300, 0, 1}, stretch{1, 300, 3000, 1}
	lasts := func(seconds int, x stretch) stretch { x.seconds = seconds; return x }
	begin := stretch{1, 300, 20, 1} // a part of a second
	some := stretch{1, 20, 150, 5}  // above the usual
	few := stretch{1, 10, 70, 40}   // too few records for a rule
	ahead := stretch{1, 75, 225, 1} // records of more packets than were counted
	for name, stretches := range map[string][]stretch{
		"begin":                     {begin},
		"begin, pause":              {begin, lasts(3, users)},
		"slow begin":                {lasts(6, begin)},
		"records ahead":             {ahead, ahead},
		"few records":               {lasts(2, few)},
		"few records, pause":        {lasts(2, few), lasts(3, users)},
		"few records, long pause":   {lasts(2, few), lasts(50, users)},
		"few, pause and begin":      {few, lasts(12, users), begin, lasts(20, users)},
		"few for long":              {lasts(30, few), begin, lasts(3, few), begin, lasts(2, few), begin, lasts(100, users)},
		"few, with pauses":          slices.Repeat([]stretch{lasts(2, few), begin}, 40),
		"few, with pauses, no more": append(slices.Repeat([]stretch{lasts(2, few), begin}, 10), lasts(80, users)),
		"over, begin, long pause":   {lasts(3, some), lasts(10, users), {}, begin, lasts(40, users)},
	} {
		for _, known := range []int{12, 40} {
			r := rand.New(rand.NewPCG(uint64(known), 7))
			d := new(Detector)
			for _, x := range append([]stretch{lasts(known, users)}, stretches...) {
				if x.seconds == 0 {
					d.Forget()
				}
				for range x.seconds {
					d.Second(x.of(r))
				}
			}
			sample, packets := full.of(r)
			f := d.Second(sample, packets)
			if others := usual(r, 800); dropped(d, many(500, func() Record { return answer(r) })) < 1 || dropped(d, others) > 0.01 {
				t.Errorf("%s, after %d seconds: %+v, rules %v", name, known, f, d.Rules())
			}
			if n := learned(d, r); n > 0 {
				t.Errorf("%s, after %d seconds: records of the flood are usual for %d seconds", name, known, n)
			}
		}
	}
}

// TestEarlyBegin begins a flood while the baseline is short, and pauses it: a rule is proposed.
func TestEarlyBegin(t *testing.T) {
	for begin := 4; begin < MinQuiet; begin++ {
		for pause := range min(3, MinQuiet-begin) {
			r := rand.New(rand.NewPCG(1, uint64(begin)))
			d := new(Detector)
			for i := range begin + pause + 3 {
				x := stretch{1, 800, 0, 1}
				if i == begin {
					x.flood = 40
				} else if i > begin+pause {
					x.flood = 6000
				}
				f := d.Second(x.of(r))
				if i > begin+pause && (f == nil || len(f.Rules) == 0 || !f.Proposed) {
					t.Errorf("begin in second %d, pause of %d, second %d: %+v", begin, pause, i, f)
				}
			}
			if n := learned(d, r); n > 0 {
				t.Errorf("begin in second %d, pause of %d: records of the flood are usual for %d seconds", begin, pause, n)
			}
		}
	}
}

// TestFewSeconds has users come in a burst when few seconds are known. These say little about how far
// rates vary: the burst is usual.
func TestFewSeconds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 8))
	d := new(Detector)
	for i, n := range []int{540, 520, 560, 784, 540, 560, 540, 520, 540, 560} {
		s := usual(r, n)
		if f := d.Second(s, uint64(len(s))); f != nil {
			t.Errorf("second %d: %+v", i, f)
		}
	}
	x := stretch{1, 540, 6000, 1}
	if f := d.Second(x.of(r)); f == nil || len(f.Rules) == 0 || f.Proposed {
		t.Errorf("a flood: %+v", f)
	}
}

// TestEnd ends a flood without a rule, with a part of a second: that is not usual.
func TestEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 8))
	d := new(Detector)
	for _, x := range []stretch{{12, 800, 0, 1}, {20, 10, 70, 80}, {1, 800, 40, 1}, {2, 800, 0, 1}, {1, 800, 40, 1}} {
		for range x.seconds {
			d.Second(x.of(r))
		}
	}
	if n := learned(d, r); n > 0 || len(d.quiet) != BaselineSeconds {
		t.Errorf("records of the flood are usual for %d seconds, of %d", n, len(d.quiet))
	}
}

// TestBursts has users come in bursts: these are usual after a minute.
func TestBursts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	d := new(Detector)
	for i := range 200 {
		n := 800
		if i%12 >= 10 {
			n = 6000
		}
		s := usual(r, n)
		f := d.Second(pick(s, MaxSample), uint64(len(s)))
		if f != nil && (n == 800 || i > 100 || len(f.Rules) > 0) {
			t.Errorf("second %d: %+v", i, f)
		} else if f == nil && i == 10 {
			t.Error("the first one is not noticed")
		}
	}
}

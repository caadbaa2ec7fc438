package observe

import (
	"encoding/json"
	"strings"
	"testing"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/filter/flood"
)

// What a rule matches is measured with a flood and without. Of a flood that rules match, it is a share of their packets.
func TestMeasure(t *testing.T) {
	f, s := new(Floods), newScene()
	ask := func(want string, patterns ...string) []wire.MeasuredRule {
		t.Helper()
		question, err := json.Marshal(patterns)
		if err != nil {
			t.Fatal(err)
		}
		all, err := f.Measure(question)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && len(all) != len(patterns) {
			t.Fatalf("%v, %v, want %q", all, err, want)
		}
		return all
	}
	measured := func(when string, pattern string, of api.FloodShare, usual int, stands bool) {
		t.Helper()
		m := ask("", pattern)[0]
		if m.Flood.Hits != of.Hits || m.Flood.Of != of.Of || m.Packets.Hits != usual || m.Packets.Of != 3000 || (len(m.For) > 0) != stands {
			t.Errorf("%s: %s: %+v", when, pattern, m)
		}
	}
	ask("not known yet", "udp")
	s.quiet(t, f, 12)
	ask("no field", "udp", "nonsense")
	ask("33 rules", make([]string, wire.MaxMeasured+1)...)
	measured("without a flood", "udp", api.FloodShare{}, 3000, false)
	n := 0
	for range 2 {
		if _, _, err := f.Second(s.second(2700, func() flood.Record {
			r := s.answers()
			if n++; n%5 == 0 { // a fifth
				r.Src = target
			}
			return r
		}), noDrops); err != nil {
			t.Fatal(err)
		}
	}
	measured("of a flood", "udp", api.FloodShare{Hits: 2700, Of: 2700}, 3000, true)
	measured("of a flood", "udp sport 123", api.FloodShare{Hits: 2700, Of: 2700}, 0, true)
	measured("of a flood", "udp src 203.0.113.10/32", api.FloodShare{Hits: 540, Of: 2700}, 0, false)
	measured("of a flood", "tcp", api.FloodShare{Of: 2700}, 0, false)
	if _, _, err := f.Second(s.second(0, nil), noDrops); err != nil { // a pause
		t.Fatal(err)
	}
	measured("in a pause", "udp sport 123", api.FloodShare{Hits: 2700, Of: 2700}, 0, true)
	f.Blind()
	ask("not sampled", "udp")
}

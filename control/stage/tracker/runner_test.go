package tracker

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/stage"
	"weir/loader"
)

// What trackers report is added up, each by itself.
func TestTotals(t *testing.T) {
	spec, err := Parse("key=src,threshold=100pps,action=limit")
	if err != nil {
		t.Fatal(err)
	}
	report := func(packets uint64, heavies int) *Report {
		r := &Report{Spec: spec, Packets: packets, Bytes: 10 * packets, Denied: 1, Flows: make([]Flow, 3)}
		for i := range heavies {
			r.Flows[i].Heavy = true
		}
		return r
	}
	var all totals
	first, second := report(5, 1), report(7, 2)
	second.Role = Drops
	all.add([]*Report{first, nil}, []*Report{first}, []Event{{Unmet: true}, {}})
	all.add([]*Report{first, second}, []*Report{second}, nil)
	first = report(6, 0)
	all.add([]*Report{first, second}, []*Report{first}, nil)
	want := []tally{
		{number: 1, key: "src", action: "limit", Counter: loader.Counter{Packets: 11, Bytes: 110}, denied: 2, flows: 3},
		{number: 2, key: "src", action: "drops", Counter: loader.Counter{Packets: 7, Bytes: 70}, denied: 1, flows: 3, heavy: 2},
	}
	if !reflect.DeepEqual(all.trackers, want) || all.refused != 1 {
		t.Errorf("%+v, %d refused; want %+v", all.trackers, all.refused, want)
	}
	var status api.Status
	(&Runner{totals: totals{refused: 3, replaced: 5}}).DescribeStatus(&status)
	if status.PenaltiesRefused != 3 || status.PenaltiesReplaced != 5 {
		t.Errorf("status: %d refused, %d replaced; want 3 and 5", status.PenaltiesRefused, status.PenaltiesReplaced)
	}
	values := make(map[*stage.Family]float64)
	for _, s := range all.trackers[1].samples() {
		if values[s.Family] = s.Value; !reflect.DeepEqual(s.Values, []string{"2", "src", "packets", "drops"}) {
			t.Errorf("%s has labels %q", s.Name, s.Values)
		}
	}
	if !reflect.DeepEqual(values, map[*stage.Family]float64{packetsOf: 7, bytesOf: 70, deniedOf: 1, flowsOf: 3, heavyOf: 2}) {
		t.Errorf("samples: %v", values)
	}
}

// Discarded intervals are logged at once, then once a minute.
func TestDiscardedIntervalsAreLogged(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	r := NewRunner(log)
	now := time.Now()
	lines := 0
	for range 3 * 60 * 10 {
		r.logDiscarded(func() []Discarded {
			return []Discarded{{Spec: Spec{Key: "src"}, Intervals: 2, Longest: 3 * time.Second}, {Spec: Spec{Key: "dst"}, Intervals: 1}}
		}, now)
		now = now.Add(100 * time.Millisecond)
	}
	for line := range strings.Lines(out.String()) {
		lines++
		if want := "tracker=src intervals=2 longest=3s"; lines%2 == 1 && !strings.Contains(line, want) || !strings.Contains(line, "level=WARN") {
			t.Errorf("logged %q, want %s", line, want)
		}
	}
	if lines != 3*2 {
		t.Errorf("%d lines of two trackers in three minutes, want 6", lines)
	}
}

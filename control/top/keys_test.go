package top

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestKeysSelectTabs(t *testing.T) {
	top := sample()
	top.Trackers = append(top.Trackers, api.Tracker{Key: "dst", Unit: "bytes"})
	for _, c := range []struct{ keys, want string }{
		{"", "src"},
		{"s", "src/24"}, {"s s", "src"}, {"s s s", "src/24"},
		{"d", "dst packets"}, {"d d", "dst bytes"}, {"d d d", "dst packets"}, {"d d s", "src"},
		{"f", "flow"}, {"f f", "flow"}, {"r", ByReason}, {"r s", "src"},
		{"tab", "src/24"}, {"r tab", "src"}, {"tab tab tab tab tab tab", "src"},
		{"x y z alt+s left", "src"},
	} {
		v := view{every: time.Second}
		for key := range strings.FieldsSeq(c.keys) {
			v.press(key, top)
		}
		if got := tabs(top)[v.chosen(top)]; got != c.want {
			t.Errorf("%q: got %s, want %s", c.keys, got, c.want)
		}
	}
}

func TestOtherKeys(t *testing.T) {
	v := view{every: time.Second}
	for _, c := range []struct {
		key    string
		every  time.Duration
		paused bool
		help   bool
	}{
		{"+", 2 * time.Second, false, false},
		{"-", time.Second, false, false},
		{"-", 500 * time.Millisecond, false, false},
		{"-", 250 * time.Millisecond, false, false},
		{"-", 250 * time.Millisecond, false, false},
		{"p", 250 * time.Millisecond, true, false},
		{"?", 250 * time.Millisecond, true, true},
		{"esc", 250 * time.Millisecond, true, false},
		{"?", 250 * time.Millisecond, true, true},
		{"d", 250 * time.Millisecond, true, false},
		{"p", 250 * time.Millisecond, false, false},
	} {
		if v.press(c.key, sample()); v.every != c.every || v.paused != c.paused || v.help != c.help {
			t.Errorf("%q: %+v", c.key, v)
		}
	}
	for range intervals {
		v.press("+", sample())
	}
	if v.every != slices.Max(intervals) {
		t.Errorf("the longest interval: %v", v.every)
	}
	v.every = 3 * time.Second // as on the command line
	if v.press("+", sample()); v.every != 5*time.Second {
		t.Errorf("3 s + : %v", v.every)
	}
}

// The help fits a screen of the smallest usual size, and says more on a larger one.
func TestHelpFits(t *testing.T) {
	for high, more := range map[int]bool{24: false, 25: false, 50: true} {
		v := view{help: true, live: true, every: time.Second}
		var text strings.Builder
		for _, l := range v.screen(sample(), 80, high) {
			text.WriteString(strings.TrimRight(l.text(), " ") + "\n")
		}
		for _, want := range []string{"   Enter explain what", "• over the threshold   ▲ rate-limited   ■ blocked for a time"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("80x%d: no %q in\n%s", high, want, &text)
			}
		}
		for _, k := range keys {
			if !strings.Contains(text.String(), " "+k.long+"\n") {
				t.Errorf("80x%d: %s is cut off or missing:\n%s", high, k.key, &text)
			}
		}
		if strings.Contains(text.String(), "figures") != more || more != strings.Contains(text.String(), "that nothing lists.") {
			t.Errorf("80x%d: figures in part:\n%s", high, &text)
		}
	}
}

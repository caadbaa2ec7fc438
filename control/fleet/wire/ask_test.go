package wire

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// An answer of the largest size can be read, and a larger one is an error.
func TestAnswers(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n-len(`""`)) }
	for _, c := range []struct {
		what string
		body any
		err  error
		want string // in the error; "": none
	}{
		{"small", "x", nil, ""},
		{"the largest", text(MaxAnswer - 64), nil, ""},
		{"one byte more", text(MaxAnswer - 63), nil, "ask for less"},
		{"an error", nil, errors.New("no such tracker"), "no such tracker"},
		{"a long error", nil, errors.New(strings.Repeat("y", 2*maxError)), strings.Repeat("y", maxError)},
		{"what JSON cannot have", math.NaN(), nil, "unsupported value"},
	} {
		answer := MarshalAnswer(c.body, c.err)
		body, err := ParseAnswer(answer)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || len(err.Error()) > maxError) {
			t.Errorf("%s: %d bytes, %.80q, %v", c.what, len(answer), body, err)
		}
		if len(answer) > MaxAnswer {
			t.Errorf("%s: an answer of %d bytes", c.what, len(answer))
		}
	}
	for _, bad := range []string{"", "{", "{}", `{"answer":1}` + strings.Repeat(" ", MaxAnswer)} {
		if body, err := ParseAnswer([]byte(bad)); err == nil {
			t.Errorf("%.20q: %.20q", bad, body)
		}
	}
}

// What a node says of its flows is taken only where it can be true.
func TestCheckHeavyFlows(t *testing.T) {
	asked := HeavyQuestion{Most: 2}
	good := HeavyFlows{Interval: 1, Units: 10, Rest: 3, Flows: []HeavyFlow{{Least: 5, Most: 7}, {Least: 10, Most: 12}}}
	if err := good.Check(asked); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*HeavyFlows){
		"no interval":              func(h *HeavyFlows) { h.Interval = 0 },
		"an interval of no number": func(h *HeavyFlows) { h.Interval = math.NaN() },
		"a long interval":          func(h *HeavyFlows) { h.Interval = 1e6 },
		"too many units":           func(h *HeavyFlows) { h.Units = maxUnits + 1 },
		"too many others":          func(h *HeavyFlows) { h.Rest = maxUnits + 1 },
		"more flows than asked":    func(h *HeavyFlows) { h.Flows = append(h.Flows[:2:2], HeavyFlow{}) },
		"less than at least":       func(h *HeavyFlows) { h.Flows = []HeavyFlow{{Least: 5, Most: 4}} },
		"more units than all":      func(h *HeavyFlows) { h.Flows = []HeavyFlow{{Least: 11, Most: 12}} },
		"too many of a flow":       func(h *HeavyFlows) { h.Flows = []HeavyFlow{{Least: 1, Most: maxUnits + 1}} },
	} {
		h := good
		if change(&h); h.Check(asked) == nil {
			t.Errorf("%s is taken", what)
		}
	}
	byKey := HeavyQuestion{Keys: [][]byte{{1}, {2}}}
	if err := good.Check(byKey); err != nil {
		t.Error(err)
	}
	if fewer := (HeavyFlows{Interval: 1, Units: 10, Flows: good.Flows[:1]}); fewer.Check(byKey) == nil {
		t.Error("one flow of two keys is taken")
	}
	most := HeavyFlows{Interval: 1, Units: maxUnits, Rest: maxUnits, Flows: []HeavyFlow{{Least: maxUnits, Most: maxUnits}}}
	if err := most.Check(asked); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
}

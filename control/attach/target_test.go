package attach

import (
	"slices"
	"testing"

	"weir/loader/hooks"
	"weir/loader/netif"
)

// An interface that several targets cover is there once, as the first has it. A pattern covers nothing
// in a network namespace that is not there.
func TestExpand(t *testing.T) {
	at := func(netns, name string, xdp hooks.Hook, required bool) Target {
		return Target{Target: netif.Target{Netns: netns, Iface: name}, XDP: xdp, Required: required}
	}
	out := at("", "lo", hooks.TC, false)
	out.Out = true
	got, err := expand([]Target{
		at("", "l[o]", hooks.Generic, false), at("", "lo", hooks.Native, false), at("", "lo", hooks.Native, true), out,
		at("weir-nosuch", "*", hooks.Native, true), at("weir-nosuch", "lo", hooks.Native, true), at("", "weir-nosuch-*", hooks.Native, false),
	})
	want := []Target{at("", "lo", hooks.Generic, false), out, at("weir-nosuch", "lo", hooks.Native, true)}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := expand([]Target{at("", "l[", hooks.Native, false)}); err == nil {
		t.Errorf("a pattern without its end: %v", got)
	}
}

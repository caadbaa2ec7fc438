package window

import "testing"

const (
	length    = 20_000
	threshold = 100
)

// A detector of windows that slide finds all that the exact one finds, and one of intervals what
// lies within one of them.
func TestDetectors(t *testing.T) {
	stream, flows := Bursts(20*length, 100, threshold, length/2, 7)
	want := NewExact(length, threshold)
	for _, f := range stream {
		want.Count(f)
	}
	truth := want.Found()
	here := 0
	for _, f := range flows {
		if truth[f] {
			here++
		}
	}
	if here < 90 { // others may take some of a burst's packets
		t.Fatalf("%d of %d bursts are in the stream", here, len(flows))
	}
	for i, k := range Kinds {
		d, err := k.New(length, threshold)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range stream {
			d.Count(f)
		}
		found, number := d.Found(), 0
		for _, f := range flows {
			if truth[f] && found[f] {
				number++
			}
		}
		t.Logf("%s: %d of %d bursts, %d flows of %d, %d bytes", k.Name, number, here, len(found), len(truth), d.Bytes())
		if all := number == here; i > 0 && !all || i == 0 && (all || number < here/3) {
			t.Errorf("%s: %d of %d bursts are found", k.Name, number, here)
		}
	}
}

package attach

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/tests/lab"
	"weir/tests/long"
)

// Pins that vanish at any moment of a start are made again from what is open: the program before filters on
// until the next one replaces it, with its counters.
func TestPinsVanishWhileStarting(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	if err := begin(t, c, targets).Stop(true); err != nil {
		t.Fatal(err)
	}
	var took time.Duration
	rounds, attachedAnew := long.Rounds(8, 24, 200), 0
	for round := range rounds {
		before := states(t, c.Pins)[l.B.Netns]
		m := NewManager(c)
		g, d := buildKernel(t, "10.0.0.1\n", configFor(targets), 1)
		if found, err := m.Find(targets); err != nil || len(found.Programs) != 1 {
			t.Fatal(found, err)
		}
		removed := make(chan error, 1)
		remove := func() { removed <- os.RemoveAll(string(c.Pins)) }
		if round == 0 {
			remove()
		} else {
			time.AfterFunc(rand.N(took), remove)
		}
		log.Reset()
		began := time.Now()
		if err := m.Start(g, d, targets); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, &log)
		}
		took = time.Since(began)
		if err := <-removed; err != nil {
			t.Logf("round %d: removed while it was written: %v", round, err)
		}
		anew := strings.Contains(log.String(), "attached anew")
		if text := log.String(); !anew && !strings.Contains(text, adoptedMessage) || round == 0 && !strings.Contains(text, "made again") {
			t.Fatalf("round %d: not adopted, with pins made again:\n%s", round, text)
		}
		for _, a := range m.Attached() {
			if _, err := a.Repin(); err != nil { // as the daemon does
				t.Fatal(err)
			}
		}
		after := states(t, c.Pins)[l.B.Netns]
		if after.Severed || after.ProgramID == before.ProgramID || !anew && !after.Since.Equal(before.Since) {
			t.Fatalf("round %d: %+v, and before %+v", round, after, before)
		}
		if anew {
			attachedAnew++
		}
		if err := m.Stop(true); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("attached anew in %d of %d starts", attachedAnew, rounds)
}

// An interface that leaves in the middle of a start is waited for, also where it is the only one of a
// pattern that is required, or a program of before filtered there.
func TestInterfaceLeavesWhileStarting(t *testing.T) {
	for _, place := range []string{"wan*", "wan1"} {
		t.Run(place, func(t *testing.T) {
			l := lab.New(t)
			var log bytes.Buffer
			c, targets := options(t, &log, l.B)
			targets[0].Iface, targets[0].Required = place, place == "wan*"
			at(t, l.B, addVeth("wan1"))
			if err := begin(t, c, targets).Stop(true); err != nil {
				t.Fatal(err)
			}
			m := NewManager(c)
			g, d := buildKernel(t, "10.0.0.1\n", configFor(targets), 1)
			if found, err := m.Find(targets); err != nil || len(found.Programs) != 1 {
				t.Fatal(found, err)
			}
			gone := make(chan struct{})
			go func() { // at about the time at which the program is loaded
				defer close(gone)
				at(t, l.B, func() error {
					l, err := netlink.LinkByName("wan1")
					if err != nil {
						return err
					}
					return netlink.LinkDel(l)
				})
			}()
			if err := m.Start(g, d, targets); err != nil {
				t.Errorf("%v\n%s", err, &log)
			}
			<-gone
			at(t, l.B, addVeth("wan1"))
			for range 50 {
				if err := m.Follow(); err != nil {
					t.Fatal(err)
				}
				if len(m.Names()) == 1 {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if all := m.Names(); len(all) != 1 {
				t.Errorf("filtered: %q\n%s", all, &log)
			}
			if err := m.Stop(false); err != nil {
				t.Error(err)
			}
		})
	}
}

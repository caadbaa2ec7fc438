package daemon

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An interface that is deleted and made again is filtered again at once. What comes
// before the program is attached cannot be filtered: it is counted apart, and once
// a listed packet was dropped, no other comes through. Nothing unlisted is lost.
func TestInterfaceComesBack(t *testing.T) {
	for _, name := range []string{"veth-b", "veth-*"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.configure(name, "lists: {always: {%s}}\n", h.feed(20_000))
			d := h.start(releases[0])
			h.settled("always")
			var took []time.Duration
			unfiltered, times := 0, rounds(7, 20)
			for round := range times {
				outOfStep := func() { time.Sleep(rand.N(300 * time.Millisecond)) } // with any timer
				outOfStep()
				from := d.logged()
				h.cut()
				if round%2 == 0 { // else it is back before anybody looks
					d.await(from, "the interface is gone")
					outOfStep()
				}
				from = d.logged()
				h.Wire(t)
				after, passed := h.filteredAgain(d, from)
				took, unfiltered = append(took, after), unfiltered+passed
			}
			slices.Sort(took)
			median, longest := took[times/2], took[times-1]
			t.Logf("%d times, filtered again %v (median) after the interface is up, %v at most; %d listed packets came before that",
				times, median.Round(time.Microsecond), longest.Round(time.Microsecond), unfiltered)
			// Less than half of this is enough on a quiet machine; run.followInterval would be more.
			if most := 120 * time.Millisecond; median > most {
				t.Errorf("filtered again after %v, want %v at most", median, most)
			}
			d.complain("the interface is gone")
		})
	}
}

// cut deletes the wire.
func (h *host) cut() {
	h.t.Helper()
	var err error
	h.A.In(h.t, func() {
		var l netlink.Link
		if l, err = netlink.LinkByName(h.A.Iface); err == nil {
			err = netlink.LinkDel(l)
		}
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// filteredAgain sends listed packets and others from now on, when the wire is up,
// until the daemon has told, since a line of its log, that the interface is filtered.
// It gives how long listed packets came through, and how many.
func (h *host) filteredAgain(d *daemon, since int) (took time.Duration, passed int) {
	h.t.Helper()
	began := time.Now()
	rx, tx := h.B.Receiver(h.t), h.A.Sender(h.t)
	frames := map[byte][]byte{
		listedKind: frameOf(h.Lab, listedKind, from(address(feedBlock, 0))),
		cleanKind:  frameOf(h.Lab, cleanKind, from(address(cleanBlock, 0))),
	}
	sent, came := map[byte][]time.Duration{}, map[byte][]bool{}
	send := func(kind byte) {
		renumber(frames[kind], uint64(len(sent[kind])))
		at := time.Since(began)
		if err := tx.Send(frames[kind]); err == nil {
			sent[kind], came[kind] = append(sent[kind], at), append(came[kind], false)
		} else if !errors.Is(err, unix.ENOBUFS) {
			h.t.Fatalf("send: %v", err)
		}
	}
	const (
		pause = 100 * time.Microsecond
		after = 20 * time.Millisecond // to see that it stays so
	)
	for filtered, ends := false, time.Now().Add(patience); time.Now().Before(ends); time.Sleep(pause) {
		send(listedKind)
		send(cleanKind)
		if !filtered && d.after(since, "the interface is there, filtering") > 0 {
			filtered, ends = true, time.Now().Add(after)
		}
	}
	for {
		frame, err := rx.Receive(100 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			h.t.Fatal(err)
		}
		if kind, n := numberOf(frame); kind == listedKind || kind == cleanKind {
			came[kind][n] = true
		}
	}
	dropped := false
	for n, through := range came[listedKind] {
		switch {
		case !through:
			dropped = true
		case dropped:
			h.t.Errorf("the listed packet %d, sent after %v, came through when it was filtered again", n, sent[listedKind][n])
		default:
			took, passed = sent[listedKind][n], passed+1
		}
	}
	if !dropped {
		h.t.Errorf("not filtered again within %v:\n%s", time.Since(began), d.tail(20))
	}
	for n, through := range came[cleanKind] {
		if !through {
			h.t.Errorf("the unlisted packet %d, sent after %v, is lost; listed ones came for %v", n, sent[cleanKind][n], took)
		}
	}
	return took, passed
}

package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/wait"
)

// The kind of a packet is the first byte of its number.
const (
	listedKind = byte(iota + 1) // must not pass
	cleanKind                   // must pass
	probeKind                   // is waited for
	endKind                     // passes before any list, after all packets sent before it
)

func frameOf(l *lab.Lab, kind byte, t key.Tuple) []byte {
	f := packet.Frame(t)
	if kind == endKind {
		f = lab.ARP()
	}
	return l.Numbered(f, uint64(kind)<<56)
}

// renumber changes the number of a frame among those of its kind.
func renumber(frame []byte, number uint64) {
	kind, _ := numberOf(frame)
	lab.Renumber(frame, uint64(kind)<<56|number)
}

// numberOf returns the kind and number of a frame, 0 if it is not of the test.
func numberOf(frame []byte) (kind byte, number uint64) {
	n, _ := lab.NumberOf(frame)
	return byte(n >> 56), n & (1<<56 - 1)
}

// from is a packet from a source.
func from(src netip.Addr) key.Tuple {
	dst := netip.MustParseAddr("203.0.113.1")
	if src.Is6() {
		dst = netip.MustParseAddr("2001:db8:ffff::1")
	}
	return key.Tuple{Src: src, Dst: dst, Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 9}
}

func froms(addrs ...netip.Addr) []key.Tuple {
	var all []key.Tuple
	for _, a := range addrs {
		all = append(all, from(a))
	}
	return all
}

// listedRate is in packets per second. The receiver's buffer has room for many seconds of
// passing packets, and a burst is small compared with the wire's queue of 256. How short a
// gap is noticed depends on sendStep.
const listedRate = 5_000.

const (
	cleanEvery = 5 // listed packets
	sendStep   = time.Millisecond
	mostAtOnce = 4 // steps that are made up for, where the sender did not run

	// What may be in the queue while its CPU is busy: clean packets with the
	// listed ones between them, and probes.
	cleanInQueue  = 8
	probesInQueue = 64
)

// traffic is sent over a wire continuously: listed packets, which must not
// pass, and others, all of which must.
type traffic struct {
	*lab.Lab
	t     testing.TB
	began time.Time
	tx    *lab.Sender
	rate  float64 // of listed packets, per second

	clean  [][]byte
	mu     sync.Mutex // guards the fields below
	listed [][]byte
	probed map[uint64]chan struct{} // by number, not yet received

	sentListed, sentClean, refused atomic.Uint64 // refused are those that the wire has not taken
	leaked, arrived                atomic.Uint64
	reached                        atomic.Uint64 // number of the last clean packet that came, and 1
	numbers                        atomic.Uint64 // of probes
	sentAt                         []time.Duration
	came                           []bool // by number, of clean packets
	sending, receiving             sync.WaitGroup
	done, over                     atomic.Bool
}

// startTraffic starts sending listed and unlisted packets. The first ones are
// sent before anything filters, and all of them must arrive: later losses are
// not the wire's.
func startTraffic(t testing.TB, l *lab.Lab, listed, clean []key.Tuple) *traffic {
	t.Helper()
	return startTrafficBy(l.A.Sender(t), t, l, listed, clean)
}

func startTrafficBy(tx *lab.Sender, t testing.TB, l *lab.Lab, listed, clean []key.Tuple) *traffic {
	t.Helper()
	f := &traffic{Lab: l, t: t, began: time.Now(), tx: tx, rate: listedRate, probed: make(map[uint64]chan struct{})}
	f.list(listed...)
	for _, c := range clean {
		f.clean = append(f.clean, frameOf(l, cleanKind, c))
	}
	rx := l.B.Receiver(t)
	f.receiving.Go(func() { f.receive(rx) })
	t.Cleanup(f.stop) // before the sockets are closed
	all := slices.Concat(listed, clean)
	for i, came := range f.passes(all[:min(len(all), 2000)]...) {
		if !came {
			t.Fatalf("without weir, packet %d is lost: the wire is no good", i)
		}
	}
	return f
}

// run starts the traffic once the listed packets are filtered.
func (f *traffic) run() { f.sending.Go(f.send) }

// list adds packets that must not pass from now on.
func (f *traffic) list(tuples ...key.Tuple) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range tuples {
		f.listed = append(f.listed, frameOf(f.Lab, listedKind, t))
	}
}

func (f *traffic) send() {
	put := func(frame []byte, number uint64) bool {
		renumber(frame, number)
		err := f.tx.TrySend(frame)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			f.t.Errorf("send: %v", err)
			f.done.Store(true)
		}
		if err != nil {
			f.refused.Add(1)
		}
		return err == nil
	}
	last := time.Now()
	for at := 0; !f.done.Load(); time.Sleep(sendStep) {
		now := time.Now()
		if f.sentClean.Load() > f.reached.Load()+cleanInQueue {
			continue
		}
		steps := min(float64(now.Sub(last))/float64(sendStep), mostAtOnce)
		last = now
		f.mu.Lock()
		listed := f.listed
		f.mu.Unlock()
		n := int(steps * f.rate * sendStep.Seconds())
		for i := range n {
			if len(listed) > 0 {
				if put(listed[at%len(listed)], f.sentListed.Load()) {
					f.sentListed.Add(1)
				}
				at++
			}
			if i%cleanEvery == 0 {
				number := f.sentClean.Load()
				f.mu.Lock()
				f.sentAt = append(f.sentAt[:number], time.Since(f.began))
				f.mu.Unlock()
				if put(f.clean[number%uint64(len(f.clean))], number) {
					f.sentClean.Add(1)
				}
			}
		}
	}
}

func (f *traffic) receive(rx *lab.Receiver) {
	for !f.over.Load() {
		frame, err := rx.Receive(50 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			f.t.Errorf("receive: %v", err)
			return
		}
		switch kind, number := numberOf(frame); kind {
		case listedKind:
			if f.leaked.Add(1) <= 5 {
				p, _ := packet.Parse(frame)
				f.t.Errorf("%.3fs: the listed packet %d, from %v, has come through", time.Since(f.began).Seconds(), number, p.Src)
			}
		case cleanKind:
			f.arrived.Add(1)
			f.came = append(f.came, make([]bool, max(0, int(number)+1-len(f.came)))...)
			if f.came[number] {
				f.t.Errorf("packet %d has come twice", number)
			}
			f.came[number] = true
			f.reached.Store(number + 1)
		case probeKind, endKind:
			f.mu.Lock()
			if came := f.probed[number]; came != nil {
				close(came)
				delete(f.probed, number)
			}
			f.mu.Unlock()
		}
	}
}

// passes sends one packet each and returns which of them pass.
func (f *traffic) passes(tuples ...key.Tuple) (all []bool) {
	f.t.Helper()
	for some := range slices.Chunk(tuples, probesInQueue) {
		all = append(all, f.passAtOnce(some)...)
	}
	return all
}

func (f *traffic) passAtOnce(tuples []key.Tuple) []bool {
	f.t.Helper()
	var waits []chan struct{}
	send := func(kind byte, t key.Tuple) {
		frame, came := frameOf(f.Lab, kind, t), make(chan struct{})
		number := f.numbers.Add(1)
		renumber(frame, number)
		f.mu.Lock()
		f.probed[number] = came
		f.mu.Unlock()
		waits = append(waits, came)
		for err := f.tx.TrySend(frame); err != nil; err = f.tx.TrySend(frame) {
			if !errors.Is(err, unix.ENOBUFS) {
				f.t.Fatalf("send: %v", err)
			}
			time.Sleep(sendStep)
		}
	}
	for _, t := range tuples {
		send(probeKind, t)
	}
	send(endKind, from(netip.MustParseAddr("192.0.2.1")))
	end := len(waits) - 1
	select {
	case <-waits[end]:
	case <-time.After(wait.Patience):
		f.t.Fatal("what must pass before any list does not come through")
	}
	all := make([]bool, end)
	for i, came := range waits[:end] {
		select {
		case <-came:
			all[i] = true
		default:
		}
	}
	return all
}

// expect sends packets which all must pass, or none.
func (f *traffic) expect(what string, pass bool, tuples ...key.Tuple) {
	f.t.Helper()
	wrong := 0
	for i, came := range f.passes(tuples...) {
		if came != pass {
			if wrong++; wrong <= 3 {
				f.t.Errorf("%.3fs: %s: the packet from %v to %v passes: %t, want %t",
					time.Since(f.began).Seconds(), what, tuples[i].Src, tuples[i].Dst, came, pass)
			}
		}
	}
	if wrong > 3 {
		f.t.Errorf("%s: and %d more of %d", what, wrong-3, len(tuples))
	}
}

// await waits until some more listed packets are sent.
func (f *traffic) await(packets uint64) {
	f.t.Helper()
	until := f.sentListed.Load() + packets
	for deadline := wait.Deadline(); f.sentListed.Load() < until; time.Sleep(sendStep) {
		if time.Now().After(deadline) {
			f.t.Fatal("the traffic has stalled")
		}
	}
}

// pause sends no more.
func (f *traffic) pause() {
	f.done.Store(true)
	f.sending.Wait()
	f.done.Store(false)
}

// stop ends the traffic. It may be called again.
func (f *traffic) stop() {
	f.done.Store(true)
	f.sending.Wait()
	f.over.Store(true)
	f.receiving.Wait()
}

// finish ends the traffic and fails the test for anything that wrongly passed
// or was lost.
func (f *traffic) finish() {
	f.t.Helper()
	f.pause()
	f.passAtOnce(nil) // after all that was sent
	f.stop()
	sent := f.sentClean.Load()
	f.t.Logf("%d listed packets sent, %d came through; %d others sent, %d came through; the wire refused %d",
		f.sentListed.Load(), f.leaked.Load(), sent, f.arrived.Load(), f.refused.Load())
	if n := f.leaked.Load(); n > 0 {
		f.t.Errorf("%d listed packets came through", n)
	}
	if lost := f.lost(); len(lost) > 0 {
		f.t.Errorf("%d of %d unlisted packets are lost: %v", sent-f.arrived.Load(), sent, lost)
	}
	if least := f.rate / 10; float64(sent) < least/cleanEvery || float64(f.sentListed.Load()) < least {
		f.t.Error("too few packets for the test to say anything")
	}
}

// lost describes the missing clean packets: runs of numbers, with the times
// when they were sent.
func (f *traffic) lost() (all []string) {
	f.came = append(f.came, make([]bool, max(0, int(f.sentClean.Load())-len(f.came)))...)
	for i := 0; i < len(f.came); i++ {
		first := i
		for i < len(f.came) && !f.came[i] {
			i++
		}
		if i > first && len(all) < 10 {
			all = append(all, fmt.Sprintf("%d…%d (%.3fs…%.3fs)", first, i-1, f.sentAt[first].Seconds(), f.sentAt[i-1].Seconds()))
		}
	}
	return all
}

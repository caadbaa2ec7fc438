package run

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/observe/digests"
	"weir/control/observe/events"
	"weir/filter/digest"
	"weir/filter/key"
)

// remember gives the recorder that the options ask for, nil for none: the one that
// there is, which may be nil, or one that is to succeed it.
func remember(o Options, old *digests.Recorder) (*digests.Recorder, error) {
	switch {
	case o.Digests == nil:
		return nil, nil
	case old != nil && old.Config == *o.Digests:
		return old, nil
	}
	return digests.NewRecorder(*o.Digests, old, o.Log)
}

// succeed has a recorder go on with what another one has. Either may be nil. It is
// called when all is ready to record elsewhere: what passes from then on until that
// is so, is forgotten.
func (f *Filter) succeed(old, next *digests.Recorder) {
	if old == nil || old == next {
		return
	}
	old.Finish(f.generation)
	if next != nil {
		next.Succeed(old)
	}
}

// recordDigests sets what a generation has to record.
func (f *Filter) recordDigests(c *engine.Config) {
	if f.recorder == nil {
		return
	}
	if f.digestSeed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		f.digestSeed = binary.LittleEndian.Uint64(b[:]) | 1
	}
	c.Digests, c.DigestSeed, c.DigestSlice = f.recorder.Geometry(), f.digestSeed, f.recorder.Slice
}

// recorded does what is due with digests, and sets when something is due again.
func (f *Filter) recorded(next *time.Timer) {
	if f.recorder == nil {
		next.Reset(time.Second)
		return
	}
	var there []digests.Interface
	for _, h := range f.holds {
		// Of one that is gone, what it has recorded last is yet to be read.
		if h.Attachment != nil && !h.Replaced() {
			there = append(there, digests.Interface{Target: h.Target, Stats: h.Stats()})
		}
	}
	for _, l := range f.recorder.Tick(f.generation, there) {
		f.events.Loop(events.Event{
			Time: time.Now(), Target: l.Target, OneIn: 1, FirstTTL: l.First, TTL: l.Last,
			Tuple: key.Tuple{Src: l.Src, Dst: l.Dst, Proto: l.Proto},
		})
		f.o.Log.Warn("packets seem to run in a loop: where does the route to their destination lead?", "interface", l.Target.String(), "packet", l.String())
	}
	next.Reset(min(f.recorder.Due(time.Now()), digests.Tick))
}

// Trace implements api.Source.
func (f *Filter) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	var r *digests.Recorder
	if err := f.Do(ctx, func() error {
		if r = f.recorder; r != nil {
			r.Look(f.generation)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, api.ErrNoDigests
	}
	packets := make([]digests.Packet, len(q.Packets))
	for i, p := range q.Packets {
		packets[i] = digests.Packet{Data: p.Data, Window: digests.Window{From: p.From, To: p.To}}
	}
	seen, err := r.Find(ctx, packets)
	switch {
	case errors.Is(err, digest.ErrTruncated) || errors.Is(err, digest.ErrMalformed) || errors.Is(err, digests.ErrTooMuch):
		return nil, &api.BadRequest{Err: err}
	case err != nil:
		return nil, fmt.Errorf("trace: %w", err)
	}
	host, _ := os.Hostname() // "": it has none
	t := &api.Traced{Host: host}
	for _, s := range seen {
		i := api.TracedInterface{Name: s.Iface, Netns: s.Netns, Packets: make([]api.TracedPacket, len(s.Found))}
		if !s.Since.IsZero() {
			i.Since = &s.Since
		}
		for k, found := range s.Found {
			i.Packets[k] = api.TracedPacket{Chance: found.Chance(), Slices: []api.TracedSlice{}}
			for _, m := range found.Matches {
				i.Packets[k].Slices = append(i.Packets[k].Slices, api.TracedSlice{
					Start: m.Start, Length: m.Length.Seconds(), Chance: m.Chance,
				})
			}
		}
		t.Interfaces = append(t.Interfaces, i)
	}
	return t, nil
}

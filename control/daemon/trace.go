package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"weir/control/api"
	"weir/control/observe/digests"
	"weir/filter/digest"
)

// Trace implements [server.Recorder].
func (x *explainer) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	var r *digests.Recorder
	if err := x.loop.doAlone(ctx, func() error {
		if r = x.observers.recorder; r != nil {
			r.Look(x.active.engine)
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
	t := &api.Traced{Host: host, Version: digest.Version}
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

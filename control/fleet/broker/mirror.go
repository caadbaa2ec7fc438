package broker

import (
	"context"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"weir/control/fleet/wire"
)

// mirrorConfig returns the configuration of the mirror. Live messages come from the hub itself;
// those that the mirror catches up with are published again, since nodes have missed them.
func (s *Site) mirrorConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: wire.Stream, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, AllowDirect: true, AllowRollup: true,
		Mirror: &jetstream.StreamSource{Name: wire.Stream, External: &jetstream.ExternalStream{
			APIPrefix: "$JS." + wire.HubDomain + ".API", DeliverPrefix: wire.MirrorPrefix(s.o.Enrollment.Name),
		}},
		RePublish: &jetstream.RePublish{Source: wire.ListsSubjects, Destination: wire.DownPrefix + wire.ListsSubjects},
	}
}

// tidied records how far tidy has come.
type tidied struct {
	of    time.Time         // when the mirror was made
	at    uint64            // its last sequence then
	heads map[string]uint64 // the sequence of the last head that was seen, by its subject
}

// tidy removes from the mirror what the hub has removed from its stream: a mirror does not hear of
// that. The last two snapshots of each list stay, with the deltas since the former: nodes may be
// fetching those.
func (s *Site) tidy(ctx context.Context, done *tidied) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, wire.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	is := stream.CachedInfo()
	if !is.Created.Equal(done.of) {
		*done = tidied{of: is.Created, heads: make(map[string]uint64)}
	}
	if is.State.LastSeq == done.at {
		return nil
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.HeadsSubject()))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			return err
		}
		if m.Sequence == done.heads[subject] {
			continue
		}
		h, err := wire.OpenHead(s.o.Enrollment.PublicKey, m.Data)
		if err == nil && wire.HeadSubject(h.List) == subject { // or nodes refuse and report it
			if err := s.tidyList(ctx, stream, h); err != nil {
				return err
			}
		}
		done.heads[subject] = m.Sequence
	}
	done.at = is.State.LastSeq
	return nil
}

// tidyList removes what a list's last snapshot supersedes, apart from the one before it, and the
// deltas since then.
func (s *Site) tidyList(ctx context.Context, stream jetstream.Stream, last wire.Head) error {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.ChunksOf(last.List)))
	if err != nil {
		return err
	}
	var before []wire.Place // from the newest on
	for subject := range info.State.Subjects {
		if p, ok := wire.PlaceOfChunk(subject); ok && p.Before(last.Place) && !slices.Contains(before, p) {
			before = append(before, p)
		}
	}
	if len(before) == 0 {
		return nil
	}
	slices.SortFunc(before, func(a, b wire.Place) int {
		if a.Before(b) {
			return 1
		}
		return -1
	})
	for _, p := range before[1:] {
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(wire.ChunksSubject(last.List, p.Epoch, p.Version))); err != nil {
			return err
		}
	}
	// The first sequence that no delta up to the former snapshot has.
	deltas, first := wire.DeltaSubject(last.List), info.State.FirstSeq
	n := sort.Search(int(info.State.LastSeq-first+1), func(i int) bool {
		if err != nil {
			return true
		}
		var m *jetstream.RawStreamMsg
		if m, err = stream.GetMsg(ctx, first+uint64(i), jetstream.WithGetMsgSubject(deltas)); err != nil {
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				err = nil
			}
			return true
		}
		d, bad := wire.OpenDelta(s.o.Enrollment.PublicKey, m.Data)
		return bad == nil && before[0].Before(wire.Place{Epoch: d.Epoch, Version: d.To})
	})
	if err != nil || n == 0 {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(deltas), jetstream.WithPurgeSequence(first+uint64(n)))
}

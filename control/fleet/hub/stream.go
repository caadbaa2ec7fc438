package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/fleet/wire"
)

// operationTimeout bounds what the broker is asked for.
const operationTimeout = 10 * time.Second

// lostAnswer is how soon the broker is asked again: a server that has just started, or makes
// its accounts anew, loses some answers. Commands wait less than operationTimeout.
const lostAnswer = time.Second

// clusterTimeout takes the place of operationTimeout where another server may answer.
const clusterTimeout = 3 * time.Second

// insist asks the broker for something, once more when no answer came, and waits for that. ask must be
// the same when it is done twice.
func insist[T any](ctx context.Context, wait time.Duration, ask func(context.Context) (T, error)) (v T, err error) {
	for _, timeout := range [...]time.Duration{lostAnswer, wait} {
		within, cancel := context.WithTimeout(ctx, timeout)
		v, err = ask(within)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			break
		}
	}
	return v, err
}

// stream is the stream of the broker, with the connection to the account that it is in.
type stream struct {
	conn *nats.Conn
	wait time.Duration // for an answer
	js   jetstream.JetStream
	read nats.JetStreamContext // asks the stream's leader for messages, and no replica that may be behind, or cut off
	in   jetstream.Stream      // nil: whether it exists is not known
	last uint64                // sequence of the last message that this hub has stored or seen
	gap  bool                  // others have stored messages between those
}

// dial connects to the broker, if that was not done. again is called when a connection that was lost is back.
func (s *stream) dial(d *dialer, again func()) (err error) {
	if s.conn != nil {
		return nil
	}
	if s.wait = operationTimeout; d.cluster() != nil {
		s.wait = clusterTimeout
	}
	if s.conn, err = d.dial("weir-hub", d.authority.OwnStream, nats.ReconnectHandler(func(*nats.Conn) { again() })); err == nil {
		s.js, err = jetstream.New(s.conn)
	}
	if err == nil {
		s.read, err = s.conn.JetStream()
	}
	return err
}

// make makes the stream, or changes it where it is another.
func (s *stream) make(ctx context.Context, replicas int) error {
	in, err := insist(ctx, s.wait, func(ctx context.Context) (jetstream.Stream, error) {
		return s.js.CreateOrUpdateStream(ctx, streamConfig(replicas))
	})
	if err == nil {
		s.in = in
	}
	return err
}

// streamConfig returns the stream's configuration.
func streamConfig(replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: wire.Stream, Subjects: wire.StreamSubjects, Storage: jetstream.FileStorage,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Replicas: replicas,
		RePublish:   &jetstream.RePublish{Source: wire.LiveSubjects, Destination: wire.DownPrefix + wire.LiveSubjects},
		AllowDirect: true, AllowRollup: true, DenyDelete: true,
	}
}

// lastMessage returns the last message of a subject, nil if there is none.
func (s *stream) lastMessage(ctx context.Context, subject string) (*nats.RawStreamMsg, error) {
	m, err := insist(ctx, s.wait, func(ctx context.Context) (*nats.RawStreamMsg, error) {
		return s.read.GetLastMsg(wire.Stream, subject, nats.Context(ctx))
	})
	if errors.Is(err, nats.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}

// store stores a message.
func (s *stream) store(ctx context.Context, m *nats.Msg, more ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := insist(ctx, s.wait, func(ctx context.Context) (*jetstream.PubAck, error) {
		return s.js.PublishMsg(ctx, m, append(more, jetstream.WithExpectStream(wire.Stream))...)
	})
	if err == nil {
		s.stored(ack.Sequence)
	}
	return ack, err
}

// stored notes the sequence of a message that the hub has stored.
func (s *stream) stored(sequence uint64) {
	s.gap = s.gap || sequence != s.last+1
	s.last = sequence
}

// info returns what the broker says of the stream.
func (s *stream) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	return insist(ctx, s.wait, func(ctx context.Context) (*jetstream.StreamInfo, error) { return s.in.Info(ctx) })
}

// maxLag is how many messages a replica may lack while it follows.
const maxLag = 1000

// replicas says which replicas of the stream are missing or lag, as its leader sees them.
func replicas(c *jetstream.ClusterInfo, wanted int) (all []string) {
	if c == nil || wanted < 2 {
		return nil
	}
	good := 1 // the leader
	for _, r := range c.Replicas {
		server, why := fmt.Sprintf("%q", r.Name), ""
		switch {
		case r.Offline:
			why = "is offline"
		case !r.Current && r.Lag > maxLag:
			why = fmt.Sprintf("lacks %d messages", r.Lag)
		case !r.Current && r.Active > 2*clusterTimeout:
			why = fmt.Sprintf("has not answered for %v", r.Active.Round(time.Second))
		default:
			good++
			continue
		}
		all = append(all, fmt.Sprintf("the replica of the stream on server %s %s: start the server, or restart it where its disk was full", server, why))
	}
	if missing := wanted - good - len(all); missing > 0 {
		all = append(all, fmt.Sprintf("the stream has %d of %d replicas: nats stream cluster says where they are missing", good, wanted))
	}
	return all
}

// snapshots returns of which versions of a list the stream has chunks.
func (s *stream) snapshots(ctx context.Context, list string) (map[wire.Place]bool, error) {
	info, err := insist(ctx, s.wait, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return s.in.Info(ctx, jetstream.WithSubjectFilter(wire.ChunksOf(list)))
	})
	if err != nil {
		return nil, err
	}
	all := make(map[wire.Place]bool)
	for subject := range info.State.Subjects {
		if p, ok := wire.PlaceOfChunk(subject); ok {
			all[p] = true
		}
	}
	return all, nil
}

// errUndecided means that the broker has an earlier attempt to store a message, and not on enough servers yet.
var errUndecided = errors.New("too few servers of the cluster have stored a message")

// unanswered returns how often the broker has been asked without an answer, as an error says.
func unanswered(err error) int {
	refused, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout): // asked twice
		return 2
	case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, errUndecided) || refused != nil && refused.Code == 503:
		return 1
	}
	return 0
}

// put publishes a message, unless another publisher came after the last one of its
// subject. It returns its sequence number.
func (s *stream) put(ctx context.Context, m *nats.Msg, last uint64) (uint64, error) {
	ack, err := s.store(ctx, m, jetstream.WithExpectLastSequencePerSubject(last))
	var refused *jetstream.APIError
	if errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		// The acknowledgement may have been lost.
		there, bad := s.lastMessage(ctx, m.Subject)
		switch {
		case bad != nil:
			return 0, bad
		case there != nil && bytes.Equal(there.Data, m.Data):
			s.stored(there.Sequence)
			return there.Sequence, nil
		case there == nil && last == 0 || there != nil && there.Sequence == last:
			return 0, errUndecided
		}
		return 0, fmt.Errorf("another hub publishes to the same stream: %w", err)
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

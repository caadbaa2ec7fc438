package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/wire"
)

// last asks for the last message of a subject.
func last(subject string) wire.Fetch { return wire.Fetch{Last: subject} }

// next asks for the first message of a subject from a sequence number on.
func next(subject string, seq uint64) wire.Fetch { return wire.Fetch{Next: subject, Seq: seq} }

// message is a message of the stream.
type message struct {
	data []byte
	seq  uint64 // 0: unknown
}

func messageOf(m *nats.Msg) message {
	seq, _ := strconv.ParseUint(m.Header.Get(wire.SequenceHeader), 10, 64)
	return message{m.Data, seq}
}

// errNone means that the stream has no such message.
var errNone = errors.New("the hub has none")

// getTimeouts bound the time for a message. The last is for a slow link, those before for an
// answer that was lost: a hub that has just started loses some. Chunks, which are large, have
// all but the first.
var getTimeouts = [...]time.Duration{2 * time.Second, 10 * time.Second, time.Minute}

// get reads a message of the stream.
func (n *Node) get(ctx context.Context, what wire.Fetch) (message, error) {
	conn := n.conn.Load()
	if conn == nil || !n.connected.Load() {
		return message{}, errors.New("no connection to the hub")
	}
	text, err := json.Marshal(what)
	if err != nil {
		return message{}, err
	}
	m, err := n.request(ctx, conn, text, wire.IsChunk(what.Last))
	if errors.Is(err, nats.ErrNoResponders) {
		return message{}, fmt.Errorf("the hub's stream is not there: %w", err)
	}
	if err != nil {
		return message{}, err
	}
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return message{}, errNone
	case "503":
		return message{}, errors.New("the hub's stream is not there")
	default:
		return message{}, fmt.Errorf("the hub answers %.3q %.80q", status, m.Header.Get("Description"))
	}
	return messageOf(m), nil
}

// request asks for a message of the stream.
func (n *Node) request(ctx context.Context, conn *nats.Conn, text []byte, large bool) (m *nats.Msg, err error) {
	timeouts := getTimeouts[:]
	if large {
		timeouts = timeouts[1:]
	}
	for _, timeout := range timeouts {
		subject := wire.NodeFetchSubject(n.Name())
		if n.clustered.Load() {
			subject = wire.FetchSubject
		}
		short, cancel := context.WithTimeout(ctx, timeout)
		m, err = conn.RequestMsgWithContext(short, &nats.Msg{Subject: subject, Data: text})
		if errors.Is(err, nats.ErrNoResponders) && subject != wire.FetchSubject { // of a cluster
			if m, err = conn.RequestMsgWithContext(short, &nats.Msg{Subject: wire.FetchSubject, Data: text}); err == nil {
				n.clustered.Store(true)
			}
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	return m, err
}

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

// directGet asks for a message of the stream.
type directGet struct {
	Seq  uint64 `json:"seq,omitempty"`
	Next string `json:"next_by_subj,omitempty"`
	Last string `json:"last_by_subj,omitempty"`
}

// last asks for the last message of a subject.
func last(subject string) directGet { return directGet{Last: subject} }

// next asks for the first message of a subject from a sequence number on.
func next(subject string, seq uint64) directGet { return directGet{Next: subject, Seq: seq} }

// message is a message of the stream.
type message struct {
	data []byte
	seq  uint64 // 0: unknown
}

func messageOf(m *nats.Msg) message {
	seq, _ := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	return message{m.Data, seq}
}

// errNone means that the stream has no such message.
var errNone = errors.New("the hub has none")

// getTimeouts bound the time for a message, of a chunk's size at most: the first is for
// an answer that was lost, the second for a slow link.
var getTimeouts = [...]time.Duration{10 * time.Second, time.Minute}

// get reads a message of the stream.
func (n *Node) get(ctx context.Context, what directGet) (message, error) {
	n.mu.Lock()
	conn := n.conn
	n.mu.Unlock()
	if conn == nil || !conn.IsConnected() {
		return message{}, errors.New("no connection to the hub")
	}
	text, err := json.Marshal(what)
	if err != nil {
		return message{}, err
	}
	var m *nats.Msg
	for _, timeout := range getTimeouts {
		short, cancel := context.WithTimeout(ctx, timeout)
		m, err = conn.RequestMsgWithContext(short, &nats.Msg{Subject: wire.FetchSubject, Data: text})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	switch status := ""; {
	case errors.Is(err, nats.ErrNoResponders):
		return message{}, fmt.Errorf("the hub's stream is not there: %w", err)
	case err != nil:
		return message{}, err
	default:
		if status = m.Header.Get("Status"); status == "404" {
			return message{}, errNone
		}
		if status != "" {
			return message{}, fmt.Errorf("the hub answers %.3q %.80q", status, m.Header.Get("Description"))
		}
	}
	return messageOf(m), nil
}

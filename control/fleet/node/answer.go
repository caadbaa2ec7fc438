package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/feed"
	"weir/control/fleet/wire"
	"weir/filter/key"
)

const (
	// answering is how many questions are answered at once, and waitingQuestions how
	// many may wait. More are refused.
	answering        = 2
	waitingQuestions = 16

	// originTimeout bounds the time for what the hub knows of entries.
	originTimeout = 3 * time.Second
)

var errBusy = errors.New("the node has too many questions to answer: ask again")

// answer answers what the hub asks, until ctx is done.
func (n *Node) answer(ctx context.Context, conn *nats.Conn, all *sync.WaitGroup) error {
	questions := make(chan *nats.Msg, waitingQuestions)
	s, err := conn.Subscribe(wire.QuestionsSubject(n.c.Enrollment.Name), func(m *nats.Msg) {
		select {
		case questions <- m:
		default:
			n.respond(m, wire.MarshalAnswer(nil, errBusy))
		}
	})
	if err == nil {
		err = s.SetPendingLimits(4*waitingQuestions, 4*waitingQuestions*wire.MaxQuestion)
	}
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	for range answering {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-questions:
					n.respond(m, n.answerTo(ctx, m))
				}
			}
		})
	}
	return nil
}

func (n *Node) respond(m *nats.Msg, answer []byte) {
	if err := m.Respond(answer); err != nil {
		n.log.Debug("the hub of the fleet cannot be answered: " + err.Error())
	}
}

// answerTo returns the answer to a question.
func (n *Node) answerTo(ctx context.Context, m *nats.Msg) []byte {
	if len(m.Data) > wire.MaxQuestion {
		return wire.MarshalAnswer(nil, fmt.Errorf("a question of %d bytes, want at most %d", len(m.Data), wire.MaxQuestion))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wire.AnswerTimeout, fmt.Errorf("no answer was found within %v: ask for less", wire.AnswerTimeout))
	defer cancel()
	what := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	switch what {
	case wire.AskSaved:
		return wire.MarshalAnswer(n.savedPart(m.Data))
	case wire.AskAssign:
		return wire.MarshalAnswer(n.takeAssignment(ctx, m.Data))
	}
	return wire.MarshalAnswer(n.daemon.Answer(ctx, what, m.Data))
}

// savedPart returns a part of the file of a list.
func (n *Node) savedPart(question []byte) (wire.SavedPart, error) {
	var q wire.SavedQuestion
	if err := json.Unmarshal(question, &q); err != nil {
		return wire.SavedPart{}, err
	}
	n.mu.Lock()
	f := n.followers[q.List]
	n.mu.Unlock()
	if f == nil || f.disk.path == "" || q.Offset < 0 {
		return wire.SavedPart{}, fmt.Errorf("nothing of list %q is saved", q.List)
	}
	return part(f.disk.path, q.Offset)
}

// origins asks the hub where entries of a list come from. Those that it does not know,
// or all if it does not answer, have none.
func (n *Node) origins(list string, keys []key.Key) []feed.Origin {
	found := make([]feed.Origin, len(keys))
	conn := n.conn.Load()
	keys = keys[:min(len(keys), wire.MaxOrigins)]
	if conn == nil || !n.connected.Load() || len(keys) == 0 {
		return found
	}
	q := wire.OriginQuestion{List: list}
	for _, k := range keys {
		q.Keys = append(q.Keys, k.Append(nil))
	}
	question, err := json.Marshal(q)
	var m *nats.Msg
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), originTimeout)
		defer cancel()
		select {
		case n.asking <- struct{}{}:
			m, err = conn.RequestWithContext(ctx, wire.OriginSubject(n.c.Enrollment.Name), question)
			<-n.asking
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	var body json.RawMessage
	if err == nil {
		body, err = wire.ParseAnswer(m.Data)
	}
	var o wire.Origins
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	if err == nil && len(o.Origins) != len(keys) {
		err = fmt.Errorf("%d origins of %d entries", len(o.Origins), len(keys))
	}
	if err != nil {
		n.log.Debug("the hub does not say where entries come from: "+err.Error(), "list", list)
		return found
	}
	for i, from := range o.Origins {
		found[i] = feed.Origin{Source: from.Source, Line: from.Line, Reason: from.Reason, By: from.By}
		if from.Added != nil {
			found[i].Added = *from.Added
		}
	}
	return found
}

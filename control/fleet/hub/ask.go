package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/api"
	"weir/control/fleet/wire"
)

const (
	// maxAsked bounds the questions under way: their answers must fit what the broker
	// keeps for the hub, 64 MiB, before it disconnects it.
	maxAsked = 64

	// patience bounds the time that a node has for an answer, patienceToSearch where it
	// may have to read its disk, and askingTimeout that of all nodes.
	patience         = 3 * time.Second
	patienceToSearch = wire.AnswerTimeout + time.Second
	askingTimeout    = 20 * time.Second

	// maxAnswers bounds the answers of all nodes to a question, in bytes.
	maxAnswers = 64 << 20
)

// asker asks nodes, and answers their questions. It has a connection of its own, so that
// a flood of answers does not delay publishing.
type asker struct {
	broker  *dialer
	find    finder
	renew   renewer
	slots   chan struct{}
	origins chan *nats.Msg            // questions that wait
	conn    atomic.Pointer[nats.Conn] // nil: it does not run

	mu      sync.Mutex
	allowed map[string]*rate.Limiter // of questions for origins, by node
	asking  map[string]bool          // the nodes whose question waits or is answered

	answered, failed atomic.Uint64 // questions to nodes
	declined         atomic.Uint64 // questions of nodes
}

func newAsker(broker *dialer, find finder, renew renewer) *asker {
	return &asker{broker: broker, find: find, renew: renew, slots: make(chan struct{}, maxAsked), origins: make(chan *nats.Msg, maxOriginQuestions), allowed: make(map[string]*rate.Limiter), asking: make(map[string]bool)}
}

// run keeps the connection until ctx ends.
func (a *asker) run(ctx context.Context) {
	conn, err := a.broker.dial("weir-hub questions", a.broker.own, nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1))
	if err == nil {
		defer conn.Close()
		err = a.serve(conn)
	}
	if err != nil {
		a.broker.log.Error("nodes cannot be asked: " + err.Error())
		return
	}
	a.conn.Store(conn)
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-a.origins:
			a.answer(ctx, m)
		}
	}
}

// connection returns the connection to the broker, nil while there is none.
func (a *asker) connection() *nats.Conn {
	conn := a.conn.Load()
	if conn == nil || !conn.IsConnected() {
		return nil
	}
	return conn
}

var errNoBroker = errors.New("the broker cannot be reached: weir fleet status says why")

// answered is the answer of a node, or why there is none.
type answered[T any] struct {
	node  string
	value *T
	err   error
}

func (a answered[T]) problem() string {
	if a.err == nil {
		return ""
	}
	return a.err.Error()
}

// ask asks nodes a question, and returns the answer of each, in the order of nodes. check
// returns what is wrong with an answer.
func ask[T any](ctx context.Context, by *asker, nodes []string, what string, question any, patience time.Duration, check func(*T) error) ([]answered[T], error) {
	text, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	if len(text) > wire.MaxQuestion {
		return nil, &api.BadRequest{Err: fmt.Errorf("a question of %d kB, want at most %d: ask for less", len(text)/1000, wire.MaxQuestion/1000)}
	}
	conn := by.connection()
	if conn == nil {
		return nil, errNoBroker
	}
	ctx, cancel := context.WithTimeout(ctx, askingTimeout)
	defer cancel()
	answers := make([]answered[T], len(nodes))
	var next, size atomic.Int64
	var all sync.WaitGroup
	for range min(maxAsked, len(nodes)) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(nodes) {
					return
				}
				a := &answers[i]
				a.node = nodes[i]
				select {
				case by.slots <- struct{}{}:
				case <-ctx.Done():
					a.err = errors.New("not asked: others have taken too long")
					continue
				}
				var body json.RawMessage
				body, a.err = askOne(ctx, conn, a.node, what, text, patience)
				<-by.slots
				by.count(a.err)
				if a.err == nil && size.Add(int64(len(body))) > maxAnswers {
					a.err = fmt.Errorf("left out: the answers of all nodes exceed %d MiB", maxAnswers>>20)
				}
				if a.err != nil {
					continue
				}
				a.value = new(T)
				if a.err = json.Unmarshal(body, a.value); a.err == nil && check != nil {
					a.err = check(a.value)
				}
				wire.Printable(a.value)
				if a.err != nil {
					a.value, a.err = nil, fmt.Errorf("invalid answer: %w", a.err)
				}
			}
		})
	}
	all.Wait()
	return answers, nil
}

// count counts a question to a node.
func (a *asker) count(err error) {
	if err != nil {
		a.failed.Add(1)
	} else {
		a.answered.Add(1)
	}
}

func askOne(ctx context.Context, conn *nats.Conn, node, what string, question []byte, patience time.Duration) (json.RawMessage, error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := conn.RequestWithContext(soon, wire.AskSubject(node, what), question)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, errors.New("not connected")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %v", patience)
	case err != nil:
		return nil, err
	}
	return wire.ParseAnswer(m.Data)
}

// nodes returns the nodes to ask, by name: some, or all that were enrolled.
func (a *asker) nodes(some []string) (names []string, err error) {
	members, err := a.broker.authority.Members()
	if err != nil {
		return nil, err
	}
	for _, name := range some {
		switch m, ok := members[name]; {
		case !ok:
			return nil, &api.BadRequest{Err: fmt.Errorf("no node %q was enrolled", name)}
		case !m.Revoked.IsZero():
			return nil, &api.BadRequest{Err: fmt.Errorf("node %s is revoked", name)}
		}
		names = append(names, name)
	}
	if some == nil {
		for name, m := range members {
			if m.Revoked.IsZero() {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

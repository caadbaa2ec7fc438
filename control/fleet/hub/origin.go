package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/key"
)

// Limits on nodes that ask where entries come from, for which a feed is read.
const (
	maxOriginQuestions = 64 // that wait
	originEvery        = 5 * time.Second
	originBurst        = 10
)

// finder returns where entries of a list come from.
type finder func(ctx context.Context, list string, keys []key.Key) ([]wire.Origin, error)

// renewer answers a node that asks for other credentials.
type renewer func(node string, request []byte) (enrollment.Answer, error)

// serve takes in the questions of nodes.
func (a *asker) serve(conn *nats.Conn) error {
	for _, subject := range []string{wire.OriginSubject("*"), wire.RenewSubject("*")} {
		s, err := conn.Subscribe(subject, a.asked)
		if err == nil {
			err = s.SetPendingLimits(maxWaiting, maxWaitingBytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// asked takes in a question of a node. One of each node waits or is answered: they are answered one
// after another, and each may take as long as reading a feed.
func (a *asker) asked(m *nats.Msg) {
	if !a.mayAsk(m, time.Now()) {
		a.declined.Add(1)
		return
	}
	select {
	case a.origins <- m:
	default: // the node does without
		a.end(m)
		a.declined.Add(1)
	}
}

// end lets the node that has asked a question ask the next one.
func (a *asker) end(m *nats.Msg) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asking, asks(m))
}

// asks returns the name of the node that asks a question.
func asks(m *nats.Msg) string { return strings.Split(m.Subject, ".")[3] }

// mayAsk reports whether a node's question is to be answered. The answer goes to the
// node's own inbox only: the hub may publish where the node may not. Until end, no other one of the node
// is to be answered.
func (a *asker) mayAsk(m *nats.Msg, now time.Time) bool {
	name := asks(m)
	if !strings.HasPrefix(m.Reply, "_INBOX."+name+".") || strings.ContainsAny(m.Reply, "*> ") || len(m.Data) > wire.MaxQuestion {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.allowed[name]
	if of == nil {
		if len(a.allowed) >= maxNodes {
			return false
		}
		of = rate.NewLimiter(rate.Every(originEvery), originBurst)
		a.allowed[name] = of
	}
	if a.asking[name] || !of.AllowN(now, 1) {
		return false
	}
	a.asking[name] = true
	return true
}

func (a *asker) answer(ctx context.Context, m *nats.Msg) {
	var is any
	var err error
	if name := asks(m); m.Subject == wire.RenewSubject(name) {
		is, err = a.renew(name, m.Data)
	} else {
		is, err = a.origin(ctx, m.Data)
	}
	a.end(m) // the node may ask again as soon as it has the answer
	if err := m.Respond(wire.MarshalAnswer(is, err)); err != nil {
		a.broker.log.Debug("a node cannot be answered: " + err.Error())
	}
}

func (a *asker) origin(ctx context.Context, text []byte) (o wire.Origins, err error) {
	var q wire.OriginQuestion
	if err := json.Unmarshal(text, &q); err != nil {
		return o, fmt.Errorf("the question cannot be read: %w", err)
	}
	if len(q.Keys) > wire.MaxOrigins {
		return o, fmt.Errorf("asked for %d entries, want at most %d", len(q.Keys), wire.MaxOrigins)
	}
	keys := make([]key.Key, len(q.Keys))
	for i, k := range q.Keys {
		if keys[i], err = key.Parse(k); err != nil {
			return o, err
		}
	}
	o.Origins, err = a.find(ctx, q.List, keys)
	return o, err
}

// origins returns where entries of a list come from. That takes about as long as
// reading the list's feed.
func (h *Hub) origins(ctx context.Context, name string, keys []key.Key) ([]wire.Origin, error) {
	origins := make([]wire.Origin, len(keys))
	var f *feed.Feed
	if err := h.Do(ctx, func() error {
		l, err := h.lists.byName.Find(name)
		if err != nil {
			return err
		}
		f = l.feed
		for i, k := range keys {
			e, ok := h.journal.Current(name, k)
			if prefix, source := list.PrefixOf(k); !ok && !k.Tuple() && !source { // of a list of destinations
				e, ok = h.journal.Current(name, key.Source(prefix))
			}
			if ok && e.Allow == (l.Action == config.Allow) {
				origins[i] = wire.Origin{Added: &e.Added, Reason: e.Reason}
			}
		}
		return nil
	}); err != nil || f == nil {
		return origins, err
	}
	for i, from := range f.Find(keys) {
		if from.Source == "" {
			continue
		}
		o := &origins[i]
		o.Source, o.Line, o.By = from.Source, from.Line, from.By
		if o.Reason == "" {
			o.Reason = from.Reason
		}
		if o.Added == nil && !from.Added.IsZero() {
			o.Added = &from.Added
		}
	}
	return origins, nil
}

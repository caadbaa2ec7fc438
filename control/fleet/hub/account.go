package hub

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/fleet/wire"
)

// account publishes the account that nodes are in, with those that are revoked, if that
// has changed: servers of sites know it from the stream. A failure concerns nothing else that is
// published.
func (p *publisher) account(ctx context.Context) {
	stamp, err := p.authority.Stamp()
	if err == nil {
		if stamp == p.stamp {
			return
		}
		if err = p.putAccount(ctx); err == nil || errors.Is(err, nats.ErrMaxPayload) { // it stays too long until that changes
			p.stamp = stamp
		}
	}
	text := ""
	if err != nil {
		text = "servers of sites do not know which nodes are revoked: " + err.Error()
		if text != p.current().unrevoked {
			p.log.Error(text)
		}
	}
	p.note(func(s *publisherState) { s.unrevoked = text })
}

func (p *publisher) putAccount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	c, token, err := p.authority.Account()
	if err != nil {
		return err
	}
	m := nats.NewMsg(wire.AccountSubject())
	m.Data = []byte(token)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	if _, err = p.stream.store(ctx, m); errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%d revoked credentials take %d bytes: %w", len(c.Revocations), len(token), err)
	}
	return err
}

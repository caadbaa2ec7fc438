package hub

import (
	"context"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/fleet/wire"
)

// account publishes the account that nodes are in, with those that are revoked, if that
// has changed: servers of sites know it from the stream.
func (p *publisher) account(ctx context.Context) error {
	stamp, err := p.authority.Stamp()
	if err != nil || stamp == p.stamp {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	for subject, account := range map[string]func() (*jwt.AccountClaims, string, error){
		wire.AccountSubject(): p.authority.Account, wire.FormerAccountSubject(): p.authority.FormerAccount,
	} {
		_, token, err := account()
		if err != nil {
			return err
		}
		m := nats.NewMsg(subject)
		m.Data = []byte(token)
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		if _, err := p.stream.store(ctx, m); err != nil {
			return err
		}
	}
	p.stamp = stamp
	return nil
}

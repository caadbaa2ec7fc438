package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
)

// External is a NATS cluster that trusts the fleet's operator, and whose account
// resolver takes the fleet's account from the hub.
type External struct {
	servers   string
	authority *authority.Authority
	options   []nats.Option
	events    *nats.Conn
}

// NewExternal returns the cluster of some servers. It is connected to later, where it
// cannot be reached.
func NewExternal(servers []string, a *authority.Authority, log *slog.Logger) (*External, error) {
	t, err := a.ClientTLS()
	if err != nil {
		return nil, err
	}
	e := &External{servers: strings.Join(servers, ","), authority: a, options: []nats.Option{
		nats.Secure(t), nats.IgnoreDiscoveredServers(), nats.DontRandomize(), nats.PingInterval(3 * time.Second), nats.MaxPingsOutstanding(2),
	}}
	token, seed, err := a.Own(true)
	if err != nil {
		return nil, err
	}
	refresh := func(c *nats.Conn) { // e.events may not be set yet
		if err := e.refresh(c); err != nil {
			log.Error("the cluster has not taken the fleet's account: " + err.Error())
		}
	}
	e.events, err = nats.Connect(e.servers, append(slices.Clone(e.options), nats.Name("weir-hub"), nats.UserJWTAndSeed(token, seed),
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(retryInterval),
		nats.ConnectHandler(refresh), nats.ReconnectHandler(refresh))...)
	return e, err
}

// Options implements [Broker].
func (e *External) Options() []nats.Option { return e.options }

// URL implements [Broker].
func (e *External) URL() string { return e.servers }

// Refresh implements [Broker]: it sends the accounts, with the nodes that are revoked.
func (e *External) Refresh() error { return e.refresh(e.events) }

func (e *External) refresh(c *nats.Conn) error {
	if !c.IsConnected() {
		return errors.New("not connected")
	}
	_, stream, err := e.authority.Stream()
	if err != nil {
		return err
	}
	_, nodes, err := e.authority.ClusterAccount()
	if err != nil {
		return err
	}
	for _, token := range []string{stream, nodes} {
		m, err := c.Request("$SYS.REQ.CLAIMS.UPDATE", []byte(token), 5*time.Second)
		if err != nil {
			return err
		}
		if !strings.Contains(string(m.Data), `"code":200`) {
			return fmt.Errorf("the cluster answers %.200s", m.Data)
		}
	}
	return nil
}

// hears reports whether the server that the hub is connected to hears some servers of the cluster, with itself.
func (e *External) hears(servers int) bool {
	inbox := nats.NewInbox()
	answers, err := e.events.SubscribeSync(inbox)
	if err != nil {
		return false // closed: the hub ends
	}
	defer func() { _ = answers.Unsubscribe() }()
	err = e.events.PublishRequest("$SYS.REQ.SERVER.PING.IDZ", inbox, nil)
	for until := time.Now().Add(lostAnswer); err == nil && servers > 0; servers-- {
		_, err = answers.NextMsg(time.Until(until))
	}
	return err == nil
}

// Close ends the connection.
func (e *External) Close() { e.events.Close() }

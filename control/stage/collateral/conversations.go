package collateral

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/stage/replies"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
)

// Conversations is the record of conversations with addresses that lists match, and the memory of
// all connections.
type Conversations struct {
	*Record
	opened  *replies.Connections
	replies replies.Spec
	pass    bool // replies do
}

// Connection is one that programs remember. It may have ended.
type Connection struct {
	In       key.Tuple // of packets that come in
	How      verdict.How
	Answered bool          // both sides have taken part; of UDP that is unknown
	Sent     time.Duration // when this host has sent the last packet, by the kernel's clock
}

// Conversations opens those of a generation's programs, nil where there is no record. They must be
// closed.
func (s *Spec) Conversations(of replies.Spec, g *loader.Generation) *Conversations {
	record := s.Open(g)
	if record == nil {
		return nil
	}
	memory := replies.NewMemory(of, true)
	return &Conversations{record, memory.Open(g), memory.Spec, of.On()}
}

// Spared reports whether lists spare what comes in of a conversation: replies, where these pass.
func (c *Conversations) Spared(how verdict.How) bool { return c.pass && how&verdict.AcceptedTCP == 0 }

// Connections calls fn with each connection that is remembered.
func (c *Conversations) Connections(fn func(Connection)) error {
	each := func(opened bool) func(replies.Connection, replies.State) error {
		return func(k replies.Connection, s replies.State) error {
			of := Connection{In: replies.Incoming(k), How: verdict.AcceptedTCP, Answered: s.Answered != 0, Sent: c.replies.Sent(k, s)}
			switch {
			case opened && of.In.Proto == unix.IPPROTO_UDP:
				of.How = verdict.OpenedUDP
			case opened:
				of.How = verdict.OpenedTCP
			}
			fn(of)
			return nil
		}
	}
	err := c.Accepted(each(false))
	if c.opened != nil {
		err = errors.Join(err, c.opened.Opened(each(true)))
	}
	return err
}

// Close releases them. Programs go on.
func (c *Conversations) Close() error {
	if c.opened == nil {
		return c.Record.Close()
	}
	return errors.Join(c.Record.Close(), c.opened.Close())
}

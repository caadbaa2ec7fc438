package connections

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"weir/filter/conntrack"
	"weir/filter/key"
	"weir/loader"
)

// Conversations is the record of conversations with addresses that lists match, and the memory of
// all connections.
type Conversations struct {
	*Record
	opened      *Opened
	repliesPass bool
}

// Remembered is one that programs remember. It may have ended.
type Remembered struct {
	In       key.Tuple // of packets that come in
	How      conntrack.How
	Answered bool          // both sides have taken part; of UDP that is unknown
	Sent     time.Duration // when this host has sent the last packet, by the kernel's clock
}

// Conversations opens the conversations of a generation's programs, and takes over the connections
// that this host opens. It returns nil where there is no record. They must be closed.
func (s *CollateralSpec) Conversations(opened *Opened, repliesPass bool, g *loader.Generation) *Conversations {
	record := s.Open(g)
	if record == nil {
		opened.Close() // if it fails, a map leaks
		return nil
	}
	return &Conversations{record, opened, repliesPass}
}

// Spared reports whether lists spare what comes in of a conversation: replies, where these pass.
func (c *Conversations) Spared(how conntrack.How) bool {
	return c.repliesPass && how&conntrack.AcceptedTCP == 0
}

// Connections calls fn with each connection that is remembered.
func (c *Conversations) Connections(fn func(Remembered)) error {
	each := func(opened bool) func(Connection, State) error {
		return func(k Connection, s State) error {
			of := Remembered{In: c.opened.Incoming(k), How: conntrack.AcceptedTCP, Answered: s.Answered != 0, Sent: c.opened.Sent(k, s)}
			switch {
			case opened && of.In.Proto == unix.IPPROTO_UDP:
				of.How = conntrack.OpenedUDP
			case opened:
				of.How = conntrack.OpenedTCP
			}
			fn(of)
			return nil
		}
	}
	return errors.Join(c.Accepted(each(false)), c.opened.Opened(each(true)))
}

// Close releases them. Programs go on.
func (c *Conversations) Close() error { return errors.Join(c.Record.Close(), c.opened.Close()) }

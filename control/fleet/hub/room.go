package hub

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"weir/control/fleet/wire"
)

// reserve bounds the space that is kept free on the disk of the hub's state, at most a 20th of
// it: what goes on without an operator, such as the audit, needs a little.
const reserve = 16 << 20

// stateDir is the directory of the hub's state.
type stateDir string

// path returns the path of a file or directory below it.
func (d stateDir) path(name string) string { return filepath.Join(string(d), name) }

// disk returns how much of its disk is free, and the size of the disk.
func (d stateDir) disk() (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(string(d), &s); err != nil {
		return 0, 0, err
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}

// errFull means that the disk is full up to the reserve.
type errFull struct{ error }

// room returns an errFull where the hub must not write, since the disk is full.
func (d stateDir) room() error {
	free, size, err := d.disk()
	if err != nil {
		return nil // writing says what is wrong
	}
	if keep := min(reserve, size/20); free < keep {
		return errFull{fmt.Errorf("the disk of the hub is full: %s of %s at %s are free, less than the %s that are kept for its own work: nothing is changed until there is room",
			humanize.Bytes(free), humanize.Bytes(size), d, humanize.Bytes(keep))}
	}
	return nil
}

// assure has nodes hear that the hub is there, with the last catalog anew, where it cannot be
// stored: in the stream stays the one before.
func (p *publisher) assure(ctx context.Context) error {
	if err := p.dialBoth(); err != nil {
		return err
	}
	if time.Since(p.current().catalog) < time.Duration(p.conf().Heartbeat)-retryInterval/2 {
		return nil
	}
	if p.issued.Epoch == 0 {
		if err := p.readIssued(ctx); err != nil {
			return err
		}
	}
	c := p.issued
	c.Term, c.MaxAge = p.contest.term(), int64(time.Duration(p.conf().MaxAge).Seconds())
	_, c.Report = p.awaited()
	var text []byte
	if err := p.loop.Do(ctx, func() (err error) {
		at, err := p.store.NextCatalog()
		if err == nil && at.Epoch != c.Epoch {
			err = errors.New("a new epoch has begun, of which nothing is published")
		}
		if err != nil {
			return err
		}
		c.Place, c.Seal = at, wire.SealPlace(p.authority.Key(), at, c.Term)
		text, err = wire.SealCatalog(p.authority.Key(), c)
		return err
	}); err != nil {
		return err
	}
	m := nats.NewMsg(wire.DownPrefix + wire.CatalogSubject())
	m.Data = text
	// The stored one is then before it, also by its place in the stream.
	m.Header.Set(wire.SequenceHeader, strconv.FormatUint(p.last+1, 10))
	if err := p.stream.conn.PublishMsg(m); err != nil {
		return err
	}
	p.settled(time.Now())
	p.note(func(s *publisherState) { s.catalog = c.Issued })
	return nil
}

// readIssued reads the last catalog from the stream, where the hub has published none since
// it started.
func (p *publisher) readIssued(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	m, err := p.stream.lastMessage(ctx, wire.CatalogSubject())
	if err != nil || m == nil {
		return errors.Join(err, errors.New("nothing was published yet"))
	}
	c, err := wire.OpenCatalog(p.authority.PublicKey(), m.Data)
	if err != nil {
		return err
	}
	p.issued, p.last = c, m.Sequence
	reached := make(map[string]wire.Place)
	for _, l := range c.Lists {
		for _, r := range l.Releases {
			if reached[l.Name].Before(r.Place) {
				reached[l.Name] = r.Place
			}
		}
	}
	p.note(func(s *publisherState) { s.reached = reached })
	return nil
}

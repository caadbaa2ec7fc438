package node

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"weir/control/durable"
	"weir/control/fleet/wire"
)

// leastLog is the size of the deltas below which a file is not written anew.
const leastLog = 1 << 20

// disk is the file of a list.
type disk struct {
	path   string // "": nothing is saved
	base   int64  // the length of head and snapshot; 0: the file is to be written anew
	length int64
	loaded bool // as it was found: a process that was killed may not have synced it
}

// full reports whether the deltas have become longer than a snapshot.
func (d *disk) full() bool { return d.path != "" && d.length-d.base > max(d.base, leastLog) }

// append adds deltas to the file.
func (d *disk) append(deltas [][]byte) (err error) {
	f, err := durable.Open(d.path, 0)
	if err != nil {
		d.base = 0
		return err
	}
	var text []byte
	for _, m := range deltas {
		text = wire.AppendSavedDelta(text, m)
	}
	if d.loaded || f.Size() != d.length {
		err = f.Cut(d.length)
	}
	if err == nil {
		err = f.Append(text)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		d.base = 0
		return err
	}
	d.length += int64(len(text))
	d.loaded = false
	return nil
}

// replace writes the file anew.
func (d *disk) replace(h wire.Head, whole []byte, deltas [][]byte) error {
	d.base = 0
	begin, err := wire.AppendSavedHead(nil, h)
	if err != nil {
		return err
	}
	if err := writeFile(d.path, begin, whole); err != nil {
		return err
	}
	d.base = int64(len(begin) + len(whole))
	d.length, d.loaded = d.base, false
	if len(deltas) > 0 {
		return d.append(deltas)
	}
	return nil
}

// remove removes the file.
func (d *disk) remove() {
	if d.path != "" {
		_ = os.Remove(d.path) // what is left is not read: the catalog does not name it
	}
	d.base = 0
}

// load returns the state that the file has, nil if there is none.
func (d *disk) load(name string, key ed25519.PublicKey) (*state, error) {
	if d.path == "" {
		return nil, nil
	}
	f, err := os.Open(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := d.read(bufio.NewReaderSize(f, 1<<20), name, key)
	if err != nil {
		d.base = 0
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	return s, nil
}

// counter counts what is read.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += int64(n)
	return n, err
}

func (d *disk) read(r io.Reader, name string, key ed25519.PublicKey) (*state, error) {
	counts := &counter{Reader: r}
	h, err := wire.ReadSavedHead(counts)
	if err != nil {
		return nil, err
	}
	if h.List != name {
		return nil, fmt.Errorf("it is of list %q", h.List)
	}
	var whole bytes.Buffer
	if _, err := io.CopyN(&whole, r, int64(h.Size)); err != nil {
		return nil, err
	}
	s, err := stateOf(h, whole.Bytes())
	if err != nil {
		return nil, err
	}
	d.base, d.loaded = counts.n+int64(h.Size), true
	for d.length = d.base; ; {
		message, err := wire.ReadSavedDelta(r)
		if err != nil {
			return s, nil
		}
		delta, err := wire.OpenDelta(key, message)
		if err != nil || delta.List != name {
			return s, nil // cut off
		}
		next, err := s.apply(delta, 0)
		if err != nil {
			return s, nil
		}
		s, d.length = next, d.length+4+int64(len(message))
	}
}

// part returns a part of a file.
func part(path string, offset int64) (p wire.SavedPart, err error) {
	f, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return p, err
	}
	p.Size = info.Size()
	p.Part, err = io.ReadAll(io.NewSectionReader(f, offset, wire.MaxSavedPart))
	return p, err
}

// compact writes the file anew from a state.
func (d *disk) compact(name string, s *state) error {
	h, whole, err := wire.NewSnapshot(wire.Head{List: name, Place: s.Place, ID: s.id, Seal: s.seal, Issued: time.Now()}, s.entries.Groups(), s.expiries())
	if err != nil {
		return err
	}
	return d.replace(h, whole, nil)
}

// writeFile replaces a file durably, and makes its directory.
func writeFile(path string, parts ...[]byte) error {
	if err := durable.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.WriteFile(path, parts...)
}

package node

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
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

// A list is saved in a file: a line that names the format; the head of a snapshot in
// JSON, with its length before and its SHA-256 behind it; the snapshot; then deltas as
// the hub has signed them, each with its length before it. Deltas are appended as they
// become active, so a crash cuts off the last one at most, which was not confirmed.

const (
	format = "weir fleet list 1\n"

	maxHead  = 4 << 10
	maxDelta = 8 << 20

	// leastLog is the size of the deltas below which a file is not written anew.
	leastLog = 1 << 20
)

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
		text = append(binary.BigEndian.AppendUint32(text, uint32(len(m))), m...)
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
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(head)
	begin := append(binary.BigEndian.AppendUint32([]byte(format), uint32(len(head))), head...)
	begin = append(begin, sum[:]...)
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
	h, err := readHead(counts)
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
		message, err := readDelta(r)
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

// later returns the deltas in a file that come after a version, as many as an answer takes. The file may grow
// meanwhile, or be replaced.
func later(path string, key ed25519.PublicKey, after wire.Place) (all [][]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	h, err := readHead(r)
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, r, int64(h.Size)); err != nil {
		return nil, err
	}
	for size := 0; ; {
		message, err := readDelta(r)
		if err != nil {
			return all, nil // the end
		}
		d, err := wire.OpenDelta(key, message)
		if err != nil {
			return all, nil
		}
		if d.Epoch != after.Epoch || d.From < after.Version {
			continue
		}
		if size += len(message); size > wire.MaxAnswer/2 { // as text, it is longer by a third
			return all, nil
		}
		all = append(all, message)
	}
}

// readHead reads what a file begins with.
func readHead(r io.Reader) (h wire.Head, err error) {
	var begin [len(format) + 4]byte
	if _, err := io.ReadFull(r, begin[:]); err != nil || string(begin[:len(format)]) != format {
		return h, errors.New("no saved list")
	}
	n := binary.BigEndian.Uint32(begin[len(format):])
	if n > maxHead {
		return h, fmt.Errorf("a head of %d bytes", n)
	}
	head := make([]byte, n+sha256.Size)
	if _, err := io.ReadFull(r, head); err != nil {
		return h, err
	}
	if sum := sha256.Sum256(head[:n]); !bytes.Equal(sum[:], head[n:]) {
		return h, errors.New("the head's checksum is wrong")
	}
	return h, json.Unmarshal(head[:n], &h)
}

// readDelta reads the next delta.
func readDelta(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxDelta {
		return nil, fmt.Errorf("a delta of %d bytes", n)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(r, message)
	return message, err
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

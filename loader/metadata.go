package loader

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// MetadataSize is the maximum size of an attachment's metadata, in bytes: the
// caller's, and about two hundred of the loader's own.
const MetadataSize = 64 << 10

// metadata describes an attachment for other processes. It is pinned as JSON
// text; the names of the keys are those of earlier versions, whose pins are
// adopted.
type metadata struct {
	Target Target          `json:"target"` // as it was named when it was attached
	Hook   Hook            `json:"mode"`
	Caller json.RawMessage `json:"about,omitempty"`
}

// encode returns the text padded with zeros to MetadataSize.
func (m metadata) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err == nil {
		text, err = padText(text, MetadataSize)
	}
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return text, nil
}

// padText returns a text padded with zeros to a size.
func padText(text []byte, size int) ([]byte, error) {
	if len(text) > size {
		return nil, fmt.Errorf("%d bytes, more than the %d that fit", len(text), size)
	}
	return append(slices.Clip(text), make([]byte, size-len(text))...), nil
}

// newTextMap returns a map of one entry, a padded text.
func newTextMap(name string, text []byte) (*ebpf.Map, error) {
	return ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: text}},
	})
}

func readText(from *ebpf.Map) ([]byte, error) {
	text, err := from.LookupBytes(uint32(0))
	return bytes.TrimRight(text, "\x00"), err
}

func readMetadata(from *ebpf.Map) (m metadata, err error) {
	text, err := readText(from)
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(text, &m)
	return m, err
}

// writeMetadata makes m the attachment's metadata.
func (a *Attachment) writeMetadata(m metadata) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := a.metadataMap.Put(uint32(0), text); err != nil {
		return explainPermission(err)
	}
	a.metadata = m
	return nil
}

// Target names the interface as it was named when it was attached to.
func (a *Attachment) Target() Target {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.metadata.Target
}

// Hook is the hook that the program is attached to.
func (a *Attachment) Hook() Hook {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.metadata.Hook
}

// Metadata returns what SetMetadata or Attach last stored for the caller, nil if
// nothing was.
func (a *Attachment) Metadata() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.metadata.Caller
}

// SetMetadata stores a JSON value for processes that open the attachment later. It
// fails with [ErrReplaced] where another process has taken over.
func (a *Attachment) SetMetadata(caller []byte) error {
	return a.locked("set metadata of", func() error {
		if a.replaced() {
			return ErrReplaced
		}
		m := a.metadata
		m.Caller = caller
		return a.writeMetadata(m)
	})
}

// ForgetStats removes the pins of the counters, so that the next program to be
// attached starts from zero: for when the numbers have changed their meaning.
func (a *Attachment) ForgetStats() error {
	return a.locked("forget the counters of", func() error {
		var errs []error
		for _, name := range pinnedMapNames {
			if err := os.Remove(filepath.Join(a.path, name)); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, explainPermission(err))
			}
		}
		return errors.Join(errs...)
	})
}

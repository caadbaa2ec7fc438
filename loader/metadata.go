package loader

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// A text is pinned as an array whose entries are pieces of textPiece bytes each, the last
// one padded with zeros: kernels before 5.15 want contiguous memory for the value of a
// system call. Earlier versions write and read texts of one piece.
const (
	textPiece     = 64 << 10
	maxTextPieces = 1 << 10
)

// metadata describes an attachment for other processes. It is pinned as JSON
// text; the names of the keys stay those of earlier versions, whose pins are
// adopted.
type metadata struct {
	Target netif.Target    `json:"target"` // as it was named when it was attached
	Hook   hooks.Hook      `json:"mode"`
	Caller json.RawMessage `json:"about,omitempty"`
}

// openMetadata opens the pinned metadata. It fails where they are lost or damaged.
func (a *Attachment) openMetadata() error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(a.path, pinMetadata), nil)
	if err != nil {
		return err
	}
	text, err := readMetadata(m)
	if err == nil && m.ValueSize() != textPiece {
		err = fmt.Errorf("metadata in pieces of %d bytes", m.ValueSize())
	}
	if err != nil {
		return errors.Join(err, m.Close())
	}
	a.metadata, a.metadataMap = text, m
	return nil
}

func (m metadata) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return text, nil
}

// newMap returns a map with the metadata.
func (m metadata) newMap() (*ebpf.Map, error) {
	text, err := m.encode()
	if err != nil {
		return nil, err
	}
	next, err := newTextMap(pinMetadata, text)
	return next, kernelerr.Permission(err)
}

// newTextMap returns a map with a text.
func newTextMap(name string, text []byte) (*ebpf.Map, error) {
	pieces := max(1, (len(text)+textPiece-1)/textPiece)
	if pieces > maxTextPieces {
		return nil, fmt.Errorf("%s: a text of %d bytes, more than %d", name, len(text), maxTextPieces*textPiece)
	}
	spec := &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: textPiece, MaxEntries: uint32(pieces)}
	text = append(slices.Clip(text), make([]byte, pieces*textPiece-len(text))...)
	for i, piece := range slices.Collect(slices.Chunk(text, textPiece)) {
		spec.Contents = append(spec.Contents, ebpf.MapKV{Key: uint32(i), Value: piece})
	}
	return ebpf.NewMap(spec)
}

func readText(from *ebpf.Map) (text []byte, err error) {
	if from.MaxEntries() > maxTextPieces {
		return nil, fmt.Errorf("a text of %d pieces, more than %d", from.MaxEntries(), maxTextPieces)
	}
	for i := range from.MaxEntries() {
		piece, err := from.LookupBytes(i)
		if err != nil {
			return nil, err
		}
		text = append(text, piece...)
	}
	return bytes.TrimRight(text, "\x00"), nil
}

func readMetadata(from *ebpf.Map) (m metadata, err error) {
	text, err := readText(from)
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(text, &m)
	return m, err
}

// writeMetadata makes m the attachment's metadata. Where pins are lost for good, the maps belong
// to this process alone, until it can pin them. It fails with ErrNotAttached where
// somebody has detached the program: pins that it made would undo that.
func (a *Attachment) writeMetadata(m metadata) error {
	next, err := a.pinMetadata(m)
	if err == nil {
		return a.useMetadata(m, next)
	}
	if a.link == nil {
		return err
	}
	if gone, err := a.detached(); gone || err != nil {
		return cmp.Or(err, ErrNotAttached)
	}
	if _, lost := a.restore(); lost == nil {
		if next, err = a.pinMetadata(m); err != nil {
			return err
		}
		return a.useMetadata(m, next)
	}
	if next, err = m.newMap(); err != nil {
		return err
	}
	return a.setMetadata(m, next)
}

// pinMetadata pins a map with the next metadata beside the present one. A pin that is left
// by a killed process is replaced by the next one's.
func (a *Attachment) pinMetadata(m metadata) (*ebpf.Map, error) {
	next, err := m.newMap()
	if err != nil {
		return nil, err
	}
	if err := a.pinNext(bpffs.Map{Map: next}, pinMetadata); err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// useMetadata exchanges the metadata, in one step, for what pinMetadata has pinned.
func (a *Attachment) useMetadata(m metadata, next *ebpf.Map) error {
	if err := os.Rename(a.next(pinMetadata), filepath.Join(a.path, pinMetadata)); err != nil {
		return errors.Join(fmt.Errorf("replace pin %s: %w", pinMetadata, err), next.Close())
	}
	return a.setMetadata(m, next)
}

func (a *Attachment) setMetadata(m metadata, next *ebpf.Map) error {
	last := a.metadataMap
	a.metadata, a.metadataMap = m, next
	return last.Close()
}

// Target names the interface as it was named when it was attached to.
func (a *Attachment) Target() netif.Target {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.metadata.Target
}

// Hook is the hook that the program is attached to.
func (a *Attachment) Hook() hooks.Hook {
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
// fails with [ErrReplaced] where another process has taken over, and with [ErrNotAttached]
// where one has detached the program.
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
		for _, name := range pinnedMapNames() {
			if err := os.Remove(filepath.Join(a.path, name)); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, kernelerr.Permission(err))
			}
		}
		return errors.Join(errs...)
	})
}

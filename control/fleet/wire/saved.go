package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A node saves a list in a file: a line that names the format; the head of a snapshot in
// JSON, with its length before and its SHA-256 behind it; the snapshot; then deltas as
// the hub has signed them, each with its length before it. Deltas are appended as they
// become active, so a crash cuts off the last one at most, which was not confirmed.

const (
	savedFormat = "weir fleet list 1\n"

	maxSavedHead = 8 << 10
	maxDelta     = 8 << 20
)

// savedHead is the part of a head that a file has.
type savedHead struct {
	Head
	Signed []byte `json:"signed,omitempty"` // [Head.Signed]
}

// AppendSavedHead appends what the file of a snapshot begins with.
func AppendSavedHead(to []byte, h Head) ([]byte, error) {
	head, err := json.Marshal(savedHead{h, h.Signed})
	if err != nil {
		return nil, err
	}
	to = append(binary.BigEndian.AppendUint32(append(to, savedFormat...), uint32(len(head))), head...)
	sum := sha256.Sum256(head)
	return append(to, sum[:]...), nil
}

// ReadSavedHead reads what AppendSavedHead has appended. Nothing says that the hub has made it, but [Head.Signed].
func ReadSavedHead(r io.Reader) (Head, error) {
	var begin [len(savedFormat) + 4]byte
	if _, err := io.ReadFull(r, begin[:]); err != nil || string(begin[:len(savedFormat)]) != savedFormat {
		return Head{}, errors.New("no saved list")
	}
	n := binary.BigEndian.Uint32(begin[len(savedFormat):])
	if n > maxSavedHead {
		return Head{}, fmt.Errorf("a head of %d bytes", n)
	}
	text := make([]byte, n+sha256.Size)
	if _, err := io.ReadFull(r, text); err != nil {
		return Head{}, err
	}
	if sum := sha256.Sum256(text[:n]); !bytes.Equal(sum[:], text[n:]) {
		return Head{}, errors.New("the head's checksum is wrong")
	}
	var h savedHead
	err := json.Unmarshal(text[:n], &h)
	h.Head.Signed = h.Signed
	return h.Head, err
}

// AppendSavedDelta appends a signed delta.
func AppendSavedDelta(to, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(message))), message...)
}

// ReadSavedDelta reads the next delta.
func ReadSavedDelta(r io.Reader) ([]byte, error) {
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

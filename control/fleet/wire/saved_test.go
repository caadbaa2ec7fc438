package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// A file is read only where its head is whole and of this format, and no larger than heads are.
func TestReadSavedHead(t *testing.T) {
	head := []byte(`{"list":"drop"}`)
	file := func(format string, head []byte) []byte {
		sum := sha256.Sum256(head)
		return slices.Concat(binary.BigEndian.AppendUint32([]byte(format), uint32(len(head))), head, sum[:])
	}
	padded := func(size int) []byte { return append(slices.Clone(head), bytes.Repeat([]byte(" "), size-len(head))...) }
	good := file(savedFormat, head)
	if h, err := ReadSavedHead(bytes.NewReader(good)); err != nil || h.List != "drop" {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := ReadSavedHead(bytes.NewReader(file(savedFormat, padded(maxSavedHead)))); err != nil {
		t.Error(err)
	}
	damaged := slices.Clone(good)
	damaged[len(savedFormat)+4+len(head)/2] ^= 1
	for what, file := range map[string][]byte{
		"another format": file(strings.Replace(savedFormat, "1", "2", 1), head), "a damaged head": damaged, "a head too large": file(savedFormat, padded(maxSavedHead+1)),
		"cut off": good[:len(good)-1], "cut off in the format": good[:len(savedFormat)-1], "empty": nil,
	} {
		if h, err := ReadSavedHead(bytes.NewReader(file)); err == nil {
			t.Errorf("%s: %+v", what, h)
		}
	}
}

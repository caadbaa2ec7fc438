package dispatcher

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"weir/loader/kernelerr"
)

// The configuration of a dispatcher has the layout that the protocol says.
func TestDispatcherConfig(t *testing.T) {
	c := config{Magic: 236, Version: 2, Programs: 2, Frags: 1}
	c.Next[0], c.Next[1], c.Priorities[0], c.Priorities[1], c.Flags[1] = 1<<31|1<<2, 1<<31|1<<1, 10, 50, 32
	want := make([]byte, 4+3*4*10)
	copy(want, []byte{236, 2, 2, 1, 4, 0, 0, 0x80, 2, 0, 0, 0x80})
	want[44], want[48], want[88] = 10, 50, 32
	if text := c.encode(); !bytes.Equal(text, want) {
		t.Errorf("got  %v\nwant %v", text, want)
	}
	if got, err := parse(want); err != nil || got != c {
		t.Errorf("parsed %+v, %v", got, err)
	}
	c.Version = 3
	text := c.encode()
	if got, err := parse(text); err != nil || got != c || len(text) != 128 {
		t.Errorf("version 3: %d bytes, %+v, %v", len(text), got, err)
	}

	// Each program goes on by its own actions.
	_, spec := specOf(2, []Member{{Next: 1 << 2}, {Next: 1 << 1}, {Next: 1<<1 | 1<<3}})
	var masks []int64
	for _, ins := range spec.Instructions {
		if ins.OpCode.ALUOp() == asm.And {
			masks = append(masks, ins.Constant&0xff)
		}
	}
	if !slices.Equal(masks, []int64{1 << 2, 1 << 1, 1<<1 | 1<<3}) {
		t.Errorf("programs go on by %b", masks)
	}

	changed := func(at int, to byte) []byte {
		text := slices.Clone(text)
		text[at] = to
		return text
	}
	for says, text := range map[string][]byte{
		"of version 1":      make([]byte, 84),
		"of version 4":      changed(1, 4),
		"124 bytes":         text[:124],
		"80 bytes":          want[:80],
		"bound to a device": changed(124, 1),
		"has 11 programs":   changed(2, 11),
	} {
		_, err := parse(text)
		if !errors.Is(err, kernelerr.ErrForeign) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

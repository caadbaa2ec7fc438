package terminal

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/quick"
)

// JSON stays JSON, and text that is cut into pieces anywhere stays the same.
func TestWriter(t *testing.T) {
	var b strings.Builder
	p := NewWriter(&b)
	if err := json.NewEncoder(p).Encode("\x1b\u009b\u202e–é\n"); err != nil {
		t.Fatal(err)
	}
	var back string
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != "\x1b\u009b\u202e–é\n" {
		t.Errorf("%q is read as %q, %v", b.String(), back, err)
	}
	if err := quick.Check(func(text string, cuts []uint8) bool {
		text = "naïve – 网\n" + text + "."
		var b strings.Builder
		p := NewWriter(&b)
		rest := text
		for _, n := range cuts {
			n := min(int(n%8), len(rest))
			p.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		n, err := p.Write([]byte(rest))
		return err == nil && n == len(rest) && b.String() == Escape(text)
	}, nil); err != nil {
		t.Error(err)
	}
}

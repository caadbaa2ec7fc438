package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable is the text output of a command. Names of files, interfaces and others
// come from anywhere, and must not give orders to a terminal: control characters are
// written as in JSON, \u001b.
type printable struct {
	to     io.Writer
	part   []byte // of a character that the last Write has cut
	failed error  // of the first Write that failed
}

func (p *printable) Write(b []byte) (int, error) {
	p.part = append(p.part, b...)
	text := p.part
	p.part = nil
	for cut := len(text) - 1; cut >= max(0, len(text)-utf8.UTFMax+1); cut-- {
		if utf8.RuneStart(text[cut]) {
			if !utf8.FullRune(text[cut:]) {
				p.part, text = append([]byte(nil), text[cut:]...), text[:cut]
			}
			break
		}
	}
	if _, err := io.WriteString(p.to, escape(string(text))); err != nil {
		p.failed = cmp.Or(p.failed, err)
		return 0, err
	}
	return len(b), nil
}

// escape makes control characters visible, those that turn the direction of text
// included.
func escape(text string) string {
	if strings.IndexFunc(text, isControl) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case isControl(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i]) // a control character to terminals without UTF-8
		default:
			b.WriteString(text[i : i+n])
		}
		i += n
	}
	return b.String()
}

// isControl reports whether a terminal takes a character for an order.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// raw returns where a text output goes, for bytes that are no text.
func raw(out io.Writer) io.Writer {
	if p, ok := out.(*printable); ok {
		return p.to
	}
	return out
}

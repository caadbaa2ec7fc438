// Package terminal writes the output of commands.
package terminal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Writer writes text. Names of files, interfaces and others come from anywhere, and must not
// control a terminal: control characters are written as in JSON, \u001b.
type Writer struct {
	to     io.Writer
	part   []byte // of a character that the last Write has cut
	failed error
}

// NewWriter returns a Writer to another one.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Err returns the error of the first Write that failed: most commands do not look whether they
// could print.
func (w *Writer) Err() error { return w.failed }

// Write implements [io.Writer].
func (w *Writer) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	text := w.part
	w.part = nil
	for cut := len(text) - 1; cut >= max(0, len(text)-utf8.UTFMax+1); cut-- {
		if utf8.RuneStart(text[cut]) {
			if !utf8.FullRune(text[cut:]) {
				w.part, text = append([]byte(nil), text[cut:]...), text[:cut]
			}
			break
		}
	}
	if _, err := io.WriteString(w.to, Escape(string(text))); err != nil {
		w.failed = cmp.Or(w.failed, err)
		return 0, err
	}
	return len(b), nil
}

// Escape makes control characters visible, those that turn the direction of text
// included.
func Escape(text string) string {
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

// isControl reports whether a character controls a terminal.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// Raw returns where a [Writer] writes, for bytes that are no text, and any other writer itself.
func Raw(out io.Writer) io.Writer {
	if w, ok := out.(*Writer); ok {
		return w.to
	}
	return out
}

// PrintJSON prints a value as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

package feed

import (
	"bytes"
	"mime"
)

// errPage is why a source is refused that serves a page for a browser: of an error, a
// login, or a portal of the network. Its lines may be addresses.
var errPage = fail(Garbage, `a page of HTML or XML instead of a list: a line begins with "<"`)

// pageStart is how much of a text is looked at for its first line.
const pageStart = 4096

// isPage reports whether a text is a page by its first line that is not blank.
func isPage(begin []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(begin, "\ufeff \t\r\n\v\f"), []byte("<"))
}

// isHTML reports whether a Content-Type is HTML's. Some servers say so of plain lists.
func isHTML(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "text/html" || kind == "application/xhtml+xml")
}

// tags looks for a line of a text that begins with a tag.
type tags struct{ within bool } // within a line, after its first character

func (t *tags) in(text []byte) bool {
	for _, c := range text {
		switch {
		case c == '\n':
			t.within = false
		case !t.within && c == '<':
			return true
		case c != ' ' && c != '\t' && c != '\r':
			t.within = true
		}
	}
	return false
}

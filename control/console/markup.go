package console

import (
	"bytes"
	"fmt"
	"html"
)

// literal is HTML that the source code contains: constants become one, and no other
// text without a conversion that shows.
type literal string

// markup is HTML under way. Everything but literals is escaped, for text and for quoted
// attributes, which is where the page has all of it. html/template would also know the
// other places, and takes 4 MB: it calls methods by name, so that the linker keeps those
// of all types.
type markup struct{ bytes.Buffer }

// add adds a literal, in which %s and the like stand for values that are escaped.
func (m *markup) add(format literal, values ...any) {
	escaped := make([]any, len(values))
	for i, v := range values {
		escaped[i] = html.EscapeString(fmt.Sprint(v))
	}
	fmt.Fprintf(m, string(format), escaped...)
}

// table begins a table that scrolls where it is too wide, and calls rows. Names of
// columns that begin with "#" are for numbers; one that begins with "-" is only
// read out.
func (m *markup) table(label string, rows func(), columns ...string) {
	m.add(`<div class="scroll" role="region" aria-label="%s" tabindex="0"><table><thead><tr>`, label)
	m.columns(columns)
	m.add("</tr></thead>\n<tbody>")
	rows()
	m.add("</tbody></table></div>\n")
}

func (m *markup) columns(columns []string) {
	for _, c := range columns {
		switch c[0] {
		case '#':
			m.add(`<th scope="col" class="n">%s</th>`, c[1:])
		case '-':
			m.add(`<th scope="col"><span class="hidden">%s</span></th>`, c[1:])
		default:
			m.add(`<th scope="col">%s</th>`, c)
		}
	}
}

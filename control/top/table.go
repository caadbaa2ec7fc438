package top

import (
	"slices"
	"strings"
)

// table has rows of a name, a bar and figures. If the width is too small, the
// least important columns are dropped in favour of the names.
type table struct {
	names   string // heading of the names
	columns []column
	rows    []row
	yields  []int // columns that may be dropped, in this order; theBar is the bar
	longest int   // maximum width of names that are not shown now, but may be next time
}

// theBar denotes the bar among the columns that may be dropped.
const theBar = -1

// column is a column of figures, to the right of the bar.
type column struct {
	name   string
	width  int
	styled bool // in the style of its row and left-aligned: words rather than figures
}

type row struct {
	style          // of the mark, the bar, and the words
	mark    string // one cell before the name; may be empty
	name    string
	bar     float64 // 0 … 1
	figures []string
	chosen  bool // the cursor is here
}

const (
	minBar, maxBar = 6, 40
	gap            = 2 // before the bar, and before each column
	margin         = 3 // a mark between two blanks
	// Columns are dropped for names up to longName: IPv4 flows and IPv6
	// addresses. Longer names are shortened, to as little as shortName.
	longName, shortName = 49, 44
)

// layout is the division of a table's width.
type layout struct {
	name, bar int
	gone      map[int]bool // dropped columns
}

func (t *table) fit(to int) layout {
	longest := max(t.longest, width(t.names))
	for _, r := range t.rows {
		longest = max(longest, width(printable(r.name)))
	}
	takes := func(c int) int {
		if c == theBar {
			return gap + minBar
		}
		return gap + t.columns[c].width
	}
	room := to - margin - 1 - takes(theBar) // with a blank at the end
	for c := range t.columns {
		room -= takes(c)
	}
	l := layout{gone: make(map[int]bool)}
	wanted := longest
	if longest > longName {
		wanted = shortName
	}
	for _, c := range t.yields {
		if room < wanted {
			l.gone[c] = true
			room += takes(c)
		}
	}
	for _, c := range slices.Backward(t.yields) { // a dropped wide one may leave room for a narrow one
		if l.gone[c] && room-takes(c) >= wanted {
			delete(l.gone, c)
			room -= takes(c)
		}
	}
	l.name = max(min(longest, room), 1)
	if !l.gone[theBar] {
		l.bar = min(minBar+room-l.name, maxBar)
	}
	return l
}

// lines returns the heading and the rows.
func (t *table) lines(to int) []line {
	fit := t.fit(to)
	between := strings.Repeat(" ", gap)
	compose := func(r row, names, figures style) line {
		l := say(plain, " ").add(r.style, r.mark).fill(margin)
		l = l.add(names, shorten(printable(r.name), fit.name)).fill(margin + fit.name)
		if fit.bar > 0 {
			l = l.add(plain, between).add(r.style, bar(r.bar, fit.bar)).fill(margin + fit.name + gap + fit.bar)
		}
		for i, c := range t.columns {
			text := cut(r.figures[i], c.width)
			switch blank := strings.Repeat(" ", c.width-width(text)); {
			case fit.gone[i]:
			case c.styled:
				l = l.add(plain, between).add(r.style, text+blank)
			default:
				l = l.add(plain, between+blank).add(figures, text)
			}
		}
		return l.fill(to)
	}
	heading := row{style: faint, name: t.names}
	for _, c := range t.columns {
		heading.figures = append(heading.figures, c.name)
	}
	all := []line{compose(heading, faint, faint)}
	for _, r := range t.rows {
		names := plain
		if r.chosen {
			names = inverse
		}
		all = append(all, compose(r, names, plain))
	}
	return all
}

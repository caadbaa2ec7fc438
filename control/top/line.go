package top

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// style is how text looks.
type style uint8

const (
	plain style = iota
	strong
	faint
	inverse
	accent
	passes // what is let through
	warns  // what wants a look
	drops  // what is dropped, or wrong
)

// looks are the styles in the terminal's own eight colours: they fit its
// background.
var looks = [...]ansi.Style{
	plain:   ansi.NewStyle(),
	strong:  ansi.NewStyle(ansi.AttrBold),
	faint:   ansi.NewStyle(ansi.AttrFaint),
	inverse: ansi.NewStyle(ansi.AttrReverse),
	accent:  ansi.NewStyle(ansi.AttrCyanForegroundColor),
	passes:  ansi.NewStyle(ansi.AttrGreenForegroundColor),
	warns:   ansi.NewStyle(ansi.AttrYellowForegroundColor),
	drops:   ansi.NewStyle(ansi.AttrRedForegroundColor),
}

// span is text in one style, on one line.
type span struct {
	text string
	style
}

// line is a line of the screen.
type line []span

// say makes a line of one span.
func say(s style, text string) line { return line{}.add(s, text) }

// add adds text. It may come from anywhere: what a terminal would obey is
// taken out.
func (l line) add(s style, text string) line {
	if clean := printable(text); clean != "" {
		l = append(l, span{clean, s})
	}
	return l
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
			return -1 // it has no cell of its own
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
}

// width is how many cells a terminal takes for text, as bubbletea reckons.
func width(text string) int { return ansi.StringWidthWc(text) }

func (l line) width() int {
	n := 0
	for _, s := range l {
		n += width(s.text)
	}
	return n
}

// fill adds blanks, or takes away from the end, so that the line is as wide as
// is said.
func (l line) fill(to int) line {
	room := max(to, 0)
	var fitted line
	for _, s := range l {
		if w := width(s.text); w > room {
			s.text = cut(s.text, room)
		}
		if room -= width(s.text); s.text != "" {
			fitted = append(fitted, s)
		}
	}
	return fitted.add(plain, strings.Repeat(" ", room))
}

// ends puts a second line at the right end of the first, if there is room.
func (l line) ends(other line, to int) line {
	if l.width()+1+other.width() > to {
		return l
	}
	return append(l.fill(to-other.width()), other...)
}

// wrapped is a label, and parts beside it, on as many lines as they take, but no
// more than most.
func wrapped(label line, parts []line, to, most int) []line {
	all := []line{label}
	for i, p := range parts {
		last := &all[len(all)-1]
		next := slices.Clone(*last)
		if i > 0 {
			next = next.add(faint, " · ")
		}
		switch next = append(next, p...); {
		case i == 0 || next.width() <= to:
			*last = next
		case len(all) == most:
			return all
		default:
			all = append(all, append(line{}.fill(label.width()), p...))
		}
	}
	return all
}

// paint is the line with the escape sequences of its styles.
func (l line) paint() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(looks[s.style].Styled(s.text))
	}
	return b.String()
}

// text is the line without its styles.
func (l line) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

const ellipsis = "…"

// cut takes away from the end what has no room.
func cut(text string, room int) string { return ansi.TruncateWc(text, room, ellipsis) }

// shorten takes away from the middle what has no room: of an address, both ends
// tell something. Of a flow it keeps protocol and ports, if it can.
func shorten(key string, room int) string {
	if width(key) <= room {
		return key
	}
	name, ends, isFlow := strings.Cut(key, " ")
	if src, dst, ok := strings.Cut(ends, " > "); isFlow && ok {
		rest := room - width(name) - len(" ") - len(" > ")
		half := max(rest/2, rest-width(dst)) // what one does not need, the other has
		src = endpoint(src, half)
		dst = endpoint(dst, rest-width(src))
		if short := name + " " + src + " > " + dst; width(short) <= room {
			return short
		}
	}
	return middle(key, room)
}

// endpoint shortens the address of an address with a port.
func endpoint(text string, room int) string {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return middle(text, room)
	}
	port := text[colon:]
	return middle(text[:colon], room-width(port)) + port
}

func middle(text string, room int) string {
	runes := []rune(text)
	if width(text) <= room {
		return text
	}
	if room < 4 { // "a…z" says nothing
		return cut(text, room)
	}
	if len(runes) != width(text) {
		return cut(text, room) // wide ones: keys have none
	}
	head := room / 2
	tail := room - 1 - head
	return string(runes[:head]) + ellipsis + string(runes[len(runes)-tail:])
}

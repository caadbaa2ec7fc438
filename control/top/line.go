package top

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// style is a text style.
type style uint8

const (
	plain style = iota
	strong
	faint
	inverse
	accent
	passes // passing
	warns  // needs attention
	drops  // dropped, or wrong
)

// looks maps styles to the terminal's eight colours, which fit its background.
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

// say returns a line of one span.
func say(s style, text string) line { return line{}.add(s, text) }

// add appends text. As its source is untrusted, control characters are
// replaced.
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
			return -1 // zero width
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
}

// width returns the number of terminal cells of text, as computed by bubbletea.
func width(text string) int { return ansi.StringWidthWc(text) }

func (l line) width() int {
	n := 0
	for _, s := range l {
		n += width(s.text)
	}
	return n
}

// fill pads or truncates the line to the given width.
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

// ends appends a second line at the right edge, if there is room.
func (l line) ends(other line, to int) line {
	if l.width()+1+other.width() > to {
		return l
	}
	return append(l.fill(to-other.width()), other...)
}

// wrapped returns a label with parts beside it, wrapped to at most `most`
// lines.
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

// paint returns the line with the escape sequences of its styles.
func (l line) paint() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(looks[s.style].Styled(s.text))
	}
	return b.String()
}

// text returns the line without styles.
func (l line) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

const ellipsis = "…"

// cut truncates text.
func cut(text string, room int) string { return ansi.TruncateWc(text, room, ellipsis) }

// shorten removes the middle of a key, as both ends of an address are
// informative. Of a flow it keeps protocol and ports, if possible.
func shorten(key string, room int) string {
	if width(key) <= room {
		return key
	}
	name, ends, isFlow := strings.Cut(key, " ")
	if src, dst, ok := strings.Cut(ends, " > "); isFlow && ok {
		rest := room - width(name) - len(" ") - len(" > ")
		half := max(rest/2, rest-width(dst)) // either may use what the other does not need
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
	if room < 4 { // "a…z" is useless
		return cut(text, room)
	}
	if len(runes) != width(text) {
		return cut(text, room) // wide ones: keys have none
	}
	head := room / 2
	tail := room - 1 - head
	return string(runes[:head]) + ellipsis + string(runes[len(runes)-tail:])
}

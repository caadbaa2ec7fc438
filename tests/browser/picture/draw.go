package main

import (
	"bytes"
	"fmt"
	"html"
	"strconv"
	"strings"
	"unicode/utf8"
)

// style is how a cell looks. Colours are written as in SVG; "" is the default.
type style struct {
	fg, bg              string
	bold, faint, invert bool
}

// cell is a character of a terminal.
type cell struct {
	char rune
	style
}

// The palette is legible on the panel, which is dark on light pages too.
const (
	panel      = "#10151d"
	foreground = "#d5dbe5"
	faint      = "#7d8799"
)

var palette = [16]string{
	"#10151d", "#f07178", "#a5d76e", "#e6c35c", "#6cb6ff", "#c9a0f5", "#5fd3d3", "#d5dbe5",
	"#7d8799", "#ff8b92", "#bfe98a", "#ffdf80", "#8fcaff", "#dcbcff", "#8aeaea", "#ffffff",
}

// parse reads the lines that a terminal shows, with the escape sequences that
// `tmux capture-pane -e` prints: SGR alone.
func parse(screen string) [][]cell {
	var lines [][]cell
	var s style
	for line := range strings.Lines(screen) {
		line = strings.TrimRight(line, "\n")
		var cells []cell
		for len(line) > 0 {
			if rest, ok := strings.CutPrefix(line, "\x1b["); ok {
				codes, after, found := strings.Cut(rest, "m")
				if !found {
					break
				}
				s.set(strings.FieldsFunc(codes, func(r rune) bool { return r == ';' || r == ':' }))
				line = after
				continue
			}
			r, n := utf8.DecodeRuneInString(line)
			line = line[n:]
			if r >= ' ' {
				cells = append(cells, cell{r, s})
			}
		}
		lines = append(lines, cells)
	}
	for len(lines) > 0 && blank(lines[len(lines)-1]) {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func blank(line []cell) bool {
	for _, c := range line {
		if c.char != ' ' || c.bg != "" || c.invert {
			return false
		}
	}
	return true
}

// set obeys the codes of an SGR sequence.
func (s *style) set(codes []string) {
	if len(codes) == 0 {
		*s = style{}
	}
	for i := 0; i < len(codes); i++ {
		n, _ := strconv.Atoi(codes[i])
		switch {
		case n == 0:
			*s = style{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.faint = true
		case n == 7:
			s.invert = true
		case n == 22:
			s.bold, s.faint = false, false
		case n == 27:
			s.invert = false
		case n >= 30 && n < 38:
			s.fg = palette[n-30]
		case n >= 90 && n < 98:
			s.fg = palette[n-90+8]
		case n >= 40 && n < 48:
			s.bg = palette[n-40]
		case n >= 100 && n < 108:
			s.bg = palette[n-100+8]
		case n == 39:
			s.fg = ""
		case n == 49:
			s.bg = ""
		case n == 38 || n == 48:
			colour, used := extended(codes[i+1:])
			i += used
			if n == 38 {
				s.fg = colour
			} else {
				s.bg = colour
			}
		}
	}
}

// extended returns the colour that follows 38 or 48, and the number of its codes.
func extended(codes []string) (colour string, used int) {
	var n [4]int
	for i := range min(len(codes), len(n)) {
		n[i], _ = strconv.Atoi(codes[i])
	}
	switch {
	case n[0] == 2 && len(codes) >= 4:
		return fmt.Sprintf("#%02x%02x%02x", n[1]&255, n[2]&255, n[3]&255), 4
	case n[0] != 5 || len(codes) < 2:
		return "", len(codes)
	case n[1] < 16:
		return palette[n[1]&15], 2
	case n[1] < 232:
		level := func(v int) int { return min(v, 1)*55 + 40*v }
		v := n[1] - 16
		return fmt.Sprintf("#%02x%02x%02x", level(v/36), level(v/6%6), level(v%6)), 2
	default:
		grey := (8 + 10*(n[1]-232)) & 255
		return fmt.Sprintf("#%02x%02x%02x", grey, grey, grey), 2
	}
}

// colours returns the colours of a cell; bg is "" for the panel's.
func (s style) colours() (fg, bg string) {
	fg, bg = s.fg, s.bg
	if fg == "" {
		fg = foreground
	}
	if s.faint {
		fg = faint
	}
	if s.invert {
		if bg == "" {
			bg = panel
		}
		fg, bg = bg, fg
	}
	return fg, bg
}

// Sizes in pixels.
const (
	cellWidth  = 8.4
	cellHeight = 18
	margin     = 16
)

// draw returns an SVG of a terminal: a panel, and the text in runs of one style.
func draw(lines [][]cell) []byte {
	wide := 0
	for _, l := range lines {
		wide = max(wide, len(l))
	}
	w, h := float64(wide)*cellWidth+2*margin, len(lines)*cellHeight+2*margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" `+
		`font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14">`+"\n", w, h, w, h)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="%s" stroke="%s"/>`+"\n", panel, faint)
	for row, line := range lines {
		for at := 0; at < len(line); {
			end := at + 1
			for end < len(line) && line[end].style == line[at].style {
				end++
			}
			drawRun(&b, row, at, line[at:end])
			at = end
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// drawRun draws cells of one style. Words stand at their columns, whatever the
// font's width is.
func drawRun(b *bytes.Buffer, row, column int, cells []cell) {
	fg, bg := cells[0].colours()
	x := func(column int) float64 { return margin + float64(column)*cellWidth }
	y := margin + row*cellHeight
	if bg != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			x(column), y, float64(len(cells))*cellWidth, cellHeight, bg)
	}
	weight := ""
	if cells[0].bold {
		weight = ` font-weight="bold"`
	}
	for at := 0; at < len(cells); {
		end := at
		var word strings.Builder
		for end < len(cells) && cells[end].char != ' ' {
			word.WriteRune(cells[end].char)
			end++
		}
		if end > at {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f" fill="%s"%s>%s</text>`+"\n",
				x(column+at), y+cellHeight-5, float64(end-at)*cellWidth, fg, weight, html.EscapeString(word.String()))
		}
		at = end + 1
	}
}

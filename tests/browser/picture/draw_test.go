package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	lines := parse("a\x1b[1;31mb\x1b[0;38;5;196mc\x1b[7md\x1b[m \x1b[2;48;2;1;2;3me\x1b[0m\n\x1b[90mf\n   \n\n")
	want := [][]cell{
		{
			{'a', style{}}, {'b', style{fg: palette[1], bold: true}}, {'c', style{fg: "#ff0000"}},
			{'d', style{fg: "#ff0000", invert: true}}, {' ', style{}}, {'e', style{bg: "#010203", faint: true}},
		},
		{{'f', style{fg: palette[8]}}},
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %v", len(lines), len(want), lines)
	}
	for i := range want {
		if len(lines[i]) != len(want[i]) {
			t.Fatalf("line %d: %v, want %v", i, lines[i], want[i])
		}
		for j := range want[i] {
			if lines[i][j] != want[i][j] {
				t.Errorf("line %d, cell %d: %v, want %v", i, j, lines[i][j], want[i][j])
			}
		}
	}
}

// A picture is well-formed, and has the words of the screen in their order.
func TestDraw(t *testing.T) {
	const screen = "\x1b[7m weir <top>  x \x1b[0m\n 1 & 2 ━━\x1b[41m  \x1b[0m\n"
	picture := draw(parse(screen))
	var words []string
	for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, picture)
		}
		if text, ok := token.(xml.CharData); ok && strings.TrimSpace(string(text)) != "" {
			words = append(words, string(text))
		}
	}
	if got, want := strings.Join(words, " "), "weir <top> x 1 & 2 ━━"; got != want {
		t.Errorf("words %q, want %q", got, want)
	}
	if !strings.Contains(string(picture), `fill="`+palette[1]+`"`) {
		t.Errorf("no red background:\n%s", picture)
	}
}

// Damaged sequences are left out.
func FuzzParse(f *testing.F) {
	f.Add("\x1b[38;5;300m\x1b[38;2;1mx\x1b[48\n\x1b[")
	f.Fuzz(func(_ *testing.T, screen string) { draw(parse(screen)) })
}

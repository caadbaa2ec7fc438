package listfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A report has the three widest lines of each family, over all chunks of a file.
func TestWidest(t *testing.T) {
	for _, n := range []int{maxWidest - 1, maxWidest, maxWidest + 1} {
		var text strings.Builder
		for range 2 * n {
			text.WriteString("192.0.2.1\n198.51.100.0/24\n2001:db8::/32\n" + strings.Repeat("# remark\n", 600))
		}
		var want []string
		for i := range n {
			fmt.Fprintf(&text, "%d.0.0.0/8\n%s", i+1, strings.Repeat("# remark\n", 600))
			if i < maxWidest {
				want = append(want, fmt.Sprintf("list:%d: %d.0.0.0/8 (0.391 %%)", 2*n*603+i*601+1, i+1))
			}
		}
		text.WriteString("# the widest\n128.0.0.0-191.255.255.254\n")
		want = append([]string{fmt.Sprintf("list:%d: 128.0.0.0/3 (25 %%)", 2*n*603+n*601+2)}, want...)
		want = want[:min(len(want), maxWidest)]
		_, r, err := collect("list", strings.NewReader(text.String()), 0, Options{}, 2, 8<<10)
		if got := fmt.Sprint(r.Widest[0]); err != nil || got != fmt.Sprint(want) {
			t.Errorf("%d: %s, want %s, %v", n, got, fmt.Sprint(want), err)
		}
		if r.Widest[1][0].Line != 3 {
			t.Errorf("%v", r.Widest[1])
		}
	}
}

// A line is suspect where all that it has together is too wide.
func TestSuspect(t *testing.T) {
	for text, want := range map[string]bool{
		"64.0.0.0/4": false, "64.0.0.0/3": true, "0.0.0.0/0": true, "224.0.0.0/3": false, "192.0.0.0/3": true,
		"64.0.0.0-80.255.255.255": true, "192.0.2.0-255.255.255.253": true, "> 64.0.0.0/3": true, "any *:* > 64.0.0.0/3:*": true,
		"2400::/16": false, "2400::/15": true, "::/0": true, "2400::-2401:ff::": true, "fc00::/7": false, "64.0.0.0/3 192.0.2.1": false,
	} {
		_, r, err := collect("list", strings.NewReader("192.0.2.1\n"+text+"\n"), 0, Options{MaxBad: 1}, 1, 8<<10)
		wide := slices.Concat(r.Widest[0], r.Widest[1])
		if got := err == nil && len(wide) > 0 && wide[0].Suspect(); got != want || got && wide[0].Line != 2 {
			t.Errorf("%s: %v, %v", text, wide, err)
		}
	}
}

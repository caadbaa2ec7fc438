package feed

import (
	"strings"
	"testing"

	"weir/control/list"
)

// A refusal for coverage names the widest lines, and lines that are probably a mistake are reported.
func TestWideLines(t *testing.T) {
	const wide = "0.0.0.0/1\n192.0.2.1\n192.0.0.0/4\n# remark\n64.0.0.0/3\n10.0.0.0/8\n"
	for name, feed := range map[string]struct{ text, column, want string }{
		"plain": {wide, "", "list:1: 0.0.0.0/1 (50 %), list:5: 64.0.0.0/3 (12.5 %), list:3: 192.0.0.0/4 (6.25 %)"},
		"csv":   {strings.ReplaceAll(wide, "\n", ",x\n"), "1", "list:1: 0.0.0.0/1 (50 %), list:5: 64.0.0.0/3 (12.5 %), list:3: 192.0.0.0/4 (6.25 %)"},
	} {
		l := newLocal(t, feed.text)
		c := config(Source{File: Path(l.path), MaxBytes: 1 << 20})
		if feed.column != "" {
			c.Format.Kind, c.Format.Column = CSV, feed.column
		}
		most := 0.25
		c.Refuse = func(e *list.Set, _ bool) error { return e.TooWide(most) }
		f := mustOpen(t, c, "")
		o := fetch(t, f)
		if o.Failure != Refused || !strings.HasSuffix(strings.ReplaceAll(o.Err.Error(), l.path, "list"), "; its widest prefixes: "+feed.want) {
			t.Errorf("%s: %v", name, o.Err)
		}
		most = 1
		l.put(feed.text + "# changed\n")
		o = fetch(t, f)
		all := f.Status().Sources[0].API(nil).Wide
		if got := strings.ReplaceAll(strings.Join(all, ", "), l.path, "list"); o.Err != nil || got != strings.Join(strings.Split(feed.want, ", ")[:2], ", ") {
			t.Errorf("%s: %s, %v", name, got, o.Err)
		}
	}
}

package share

import "testing"

func TestManText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a paragraph", "one\ntwo", "one\ntwo\n"},
		{"two paragraphs", "one\n\ntwo\n", "one\n.PP\ntwo\n"},
		{"indented lines", "one:\n  a\n  b\ntwo", "one:\n.nf\n  a\n  b\n.fi\ntwo\n"},
		{"columns", "one\n\na  1\nb  2\n\ntwo", "one\n.PP\n.nf\na  1\nb  2\n.fi\n.PP\ntwo\n"},
		{"indented to the end", "  a", ".nf\n  a\n.fi\n"},
		{"a request", ".data[].ip", "\\&.data[].ip\n"},
		{"what is printed as it is", `weir -x 'tcp \n' ~ ^`, `weir \-x \(aqtcp \en\(aq \(ti \(ha` + "\n"},
	} {
		if got := manText(c.text); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

package feed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// bare answers as a server of HTTP/1.0 that does not say how long its answer is.
func bare(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(buf, "HTTP/1.0 200 OK\r\nETag: \"%d\"\r\n\r\n%s", len(body), body)
		_ = buf.Flush()
		c.Close()
	}
}

// A last line without an end is no entry where it may be cut off, and is said so; a version
// that ends so twice is whole.
func TestCutOff(t *testing.T) {
	srv := serve(t, bare(less+"203.0.113.2"))
	dir := t.TempDir()
	f := mustOpen(t, config(from(srv)), dir)
	o := fetch(t, f)
	want(t, f, o, New, NoFailure, lessText)
	if a := o.API("drop", nil); a.BadLines != 1 || !strings.Contains(a.FirstBad[0], `list.txt:3: the last line has no end`) || !strings.Contains(a.FirstBad[0], `"203.0.113.2"`) {
		t.Errorf("answer %+v", a)
	}
	if lines, n := f.Status().Sources[0].BadLines(); n != 1 || !strings.Contains(lines[0], "may be cut off") {
		t.Errorf("state: %q", lines)
	}
	f = mustOpen(t, config(from(srv)), dir) // the version before is known after a restart
	want(t, f, fetch(t, f), New, NoFailure, lessText+" 203.0.113.2")

	srv.now(bare(good))
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	srv.now(bare(good + "203.0.113.2"))
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)

	// Their length is known, or their end.
	for _, h := range []http.HandlerFunc{text(less + "203.0.113.2"), bare(string(zip(t, []byte(less+"203.0.113.2"))))} {
		f := mustOpen(t, config(from(serve(t, h))), t.TempDir())
		want(t, f, fetch(t, f), New, NoFailure, lessText+" 203.0.113.2")
	}
	f = mustOpen(t, named("json", Format{Kind: JSON, Path: ".[]"}, from(serve(t, bare(`["192.0.2.1"]`)))), t.TempDir())
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
	f = mustOpen(t, config(from(serve(t, bare("192.0.2.1")))), t.TempDir())
	if o := fetch(t, f); o.Failure != Truncated || !strings.Contains(o.Err.Error(), "may be cut off") {
		t.Errorf("a line alone: %+v", o)
	}
}

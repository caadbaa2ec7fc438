package feed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir/tests/seed"
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

// A body that is cut at random, without a length or before its last chunk, has no entries but those
// of whole lines.
func TestCutBodies(t *testing.T) {
	random, whole := seed.New(t), make(map[string]bool)
	var body strings.Builder
	for i := range 60 {
		line := fmt.Sprintf("203.0.%d.%d", random.IntN(256), 100+i)
		whole[line] = true
		fmt.Fprintf(&body, "%s%s", line, []string{"\n", "\r\n", " remark\n"}[random.IntN(3)])
	}
	chunk := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, body)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	srv, taken := serve(t, bare("")), 0
	for range 100 {
		cut := body.String()[:1+random.IntN(body.Len()-1)]
		for name, h := range map[string]http.HandlerFunc{"bare": bare(cut), "chunks": chunk(cut)} {
			srv.now(h)
			f := mustOpen(t, config(from(srv)), "")
			o := fetch(t, f)
			for _, e := range textsOf(f.Contents()) {
				if !whole[e] {
					t.Fatalf("%s: %s of a body cut behind %q", name, e, cut[max(0, len(cut)-20):])
				}
			}
			taken += o.Entries
			if want := strings.Count(cut, "\n"); name == "chunks" && o.Entries > 0 || o.Entries > want {
				t.Fatalf("%s: %d entries of %d lines: %+v", name, o.Entries, want, o)
			}
		}
	}
	if taken == 0 {
		t.Error("nothing was taken")
	}
}

package feed

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/list"
	"weir/tests/must"
)

// numbered returns a list of the first n addresses of 10.0.0.0/8.
func numbered(n int) string {
	var text strings.Builder
	a := netip.MustParseAddr("10.0.0.0")
	for range n {
		fmt.Fprintln(&text, a)
		a = a.Next()
	}
	return text.String()
}

// Contents that are held are saved when they are kept, not before, and those that
// are reverted leave what was kept, in memory and on disk.
func TestKeepAndRevert(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, text(good))
	c := config(from(s))
	c.Hold = true
	f := mustOpen(t, c, dir)
	saved := func(entries string) {
		t.Helper()
		f, o := loaded(t, c, dir)
		if entries == "" {
			want(t, f, o, None, NoFailure, "")
			return
		}
		want(t, f, o, Loaded, NoFailure, entries)
	}
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	saved("")
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	saved("")
	if f.Status().Sources[0].Unsaved {
		t.Error("undecided contents count as unsaved")
	}
	if err := f.Keep(f.Version()); err != nil {
		t.Fatal(err)
	}
	saved(goodText)

	s.now(text(less))
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	before := f.Version()
	f.Revert(before, errors.New("it does not fit"))
	st := f.Status().Sources[0]
	if st.Last.Failure != Uncompiled || st.Last.Result != Failed || !strings.Contains(st.Last.Err.Error(), "does not fit") || st.Failures != 1 || st.Entries != 4 {
		t.Errorf("reverted: %+v", st)
	}
	if f.Version() == before || strings.Join(textsOf(f.Contents()), " ") != goodText {
		t.Error("Revert has left the contents")
	}
	saved(goodText)
	if err := f.Keep(f.Version()); err != nil {
		t.Error(err)
	}
	saved(goodText)

	// A version that was not decided about yet stays undecided.
	old := f.Version()
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	f.Revert(old, errors.New("older"))
	if err := f.Keep(old); err != nil || strings.Join(textsOf(f.Contents()), " ") != lessText {
		t.Errorf("decided about what came later: %v", err)
	}
	saved(goodText)
	// Of two undecided ones, Revert goes back behind both.
	s.now(text(less + "192.0.2.3\n"))
	fetch(t, f)
	f.Revert(f.Version(), errors.New("neither fits"))
	if got := strings.Join(textsOf(f.Contents()), " "); got != goodText {
		t.Errorf("reverted to %s", got)
	}
	want(t, f, fetch(t, f), New, NoFailure, lessText+" 192.0.2.3")
	if err := f.Keep(f.Version()); err != nil {
		t.Fatal(err)
	}
	saved(lessText + " 192.0.2.3")
	f, _ = loaded(t, c, dir)
	f.Revert(f.Version(), errors.New("what was loaded has no predecessor"))
	if f.Contents().Len() != 3 {
		t.Error("Revert has removed what was kept")
	}
}

// Many small losses amount to a large one: what a source is compared with follows
// it slowly.
func TestSlowShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mustOpen(t, config(Source{URL: "http://192.0.2.1/list", MaxBytes: 1 << 20}), "")
		served := numbered(250)
		f.sources[0].client.Transport = roundTripper(func(q *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Request: q, Body: io.NopCloser(strings.NewReader(served))}, nil
		})
		walk := func(every time.Duration, steps int) (accepted int) {
			accepted = f.Contents().Len()
			for range steps {
				time.Sleep(every)
				served = numbered((accepted + 1) / 2)
				if o := fetch(t, f); o.Failure == NoFailure {
					accepted = f.Contents().Len()
				}
			}
			return accepted
		}
		fetch(t, f)
		if n := walk(time.Hour, 9); n != 125 {
			t.Errorf("nine refreshes have shrunk 250 entries to %d", n)
		}
		if n := walk(24*time.Hour, 30); n > 125 || n < 60 {
			t.Errorf("%d entries after a month", n)
		}
		served = numbered(1)
		want(t, f, fetch(t, f), Failed, Shrunk, strings.Join(textsOf(f.Contents()), " "))
		if o, err := f.Accept(t.Context()); err != nil || o[0].Failure != NoFailure || f.Contents().Len() != 1 {
			t.Errorf("accepted: %+v, %v", o, err)
		}
		served = ""
		want(t, f, fetch(t, f), Failed, Empty, "10.0.0.0")
		if o, err := f.Accept(t.Context()); err != nil || o[0].Failure != NoFailure || f.Contents().Len() != 0 {
			t.Errorf("accepted: %+v, %v", o, err)
		}
		served = numbered(100)
		fetch(t, f)
		served = numbered(40)
		if o := fetch(t, f); o.Failure != Shrunk {
			t.Errorf("after an accepted one: %v", o.Failure)
		}
	})
}

// The reference outlasts a restart.
func TestShrinkAfterRestart(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, text(numbered(100)))
	c := config(from(s))
	f := mustOpen(t, c, dir)
	fetch(t, f)
	s.now(text(numbered(60)))
	fetch(t, f)
	f, _ = loaded(t, c, dir)
	s.now(text(numbered(40)))
	if o := fetch(t, f); o.Failure != Shrunk || !strings.Contains(o.Err.Error(), "40 entries, down from 100") {
		t.Errorf("%v: %v", o.Result, o.Err)
	}
}

// A file belongs to the operator: it may lose entries, and all of them. A
// directory may do so too, but not all files, as if it were not mounted.
func TestFilesMayShrink(t *testing.T) {
	file := newLocal(t, good)
	for _, content := range []string{good, "192.0.2.1\n", "# none\n", "", good} {
		file.put(content)
		if o := fetch(t, file.feed); o.Failure != NoFailure {
			t.Errorf("%q: %v", content, o.Err)
		}
	}
	dir := t.TempDir()
	must.Write(t, dir+"/one", good)
	f := mustOpen(t, config(Source{Directory: Path(dir), MaxBytes: 1 << 20}), "")
	fetch(t, f)
	must.Write(t, dir+"/one", "192.0.2.1\n")
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
	must.Write(t, dir+"/one", "")
	want(t, f, fetch(t, f), New, NoFailure, "")
	must.Write(t, dir+"/one", good)
	fetch(t, f)
	if err := os.Remove(dir + "/one"); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), Failed, Empty, goodText)
	if o, err := f.Accept(t.Context()); err != nil || o[0].Failure != NoFailure || f.Contents().Len() != 0 {
		t.Errorf("accepted: %+v, %v", o, err)
	}
}

// What an operator has accepted stays accepted across a restart; other contents
// are checked again.
func TestAcceptedOnce(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, text(good))
	c := config(from(s))
	c.Refuse = func(e *list.Set, accepted bool) error {
		if e.Len() > 3 && !accepted {
			return errors.New("it covers too much")
		}
		return nil
	}
	f := mustOpen(t, c, dir)
	want(t, f, fetch(t, f), Failed, Refused, "")
	if o, err := f.Accept(t.Context()); err != nil || o[0].Result != New || !f.Accepted() {
		t.Fatalf("accepted: %+v, %v", o, err)
	}
	if f, _ = loaded(t, c, dir); !f.Accepted() || f.Contents().Len() != 4 {
		t.Error("it was forgotten")
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	if !f.Accepted() {
		t.Error("unchanged contents are not accepted any more")
	}
	s.now(text(good + "192.0.2.3\n"))
	want(t, f, fetch(t, f), Failed, Refused, goodText)
	s.now(text(less))
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	if f.Accepted() {
		t.Error("other contents count as accepted")
	}
}

// local is a feed of one file.
type local struct {
	t    *testing.T
	path string
	feed *Feed
}

func newLocal(t *testing.T, content string) *local {
	l := &local{t: t, path: t.TempDir() + "/list"}
	l.put(content)
	l.feed = mustOpen(t, config(Source{File: Path(l.path), MaxBytes: 1 << 20}), "")
	return l
}

func (l *local) put(content string) {
	l.t.Helper()
	must.Write(l.t, l.path+".new", content)
	if err := os.Rename(l.path+".new", l.path); err != nil {
		l.t.Fatal(err)
	}
}

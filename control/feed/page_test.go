package feed

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A page for a browser is no list, even if most of its lines are addresses. A list that
// is served as HTML is one.
func TestPages(t *testing.T) {
	list := addresses(500)
	for _, c := range []struct {
		contentType, text string
		kind              Kind
		want              Failure
	}{
		{"text/plain", "<html>\n" + list + "</html>\n", Plain, Garbage},
		{"", "\ufeff\n\n  <!DOCTYPE html>\n" + list, Plain, Garbage},
		{"text/html; charset=utf-8", "Blocked addresses:\n<pre>\n" + list + "</pre>\n", Plain, Garbage},
		{"application/xhtml+xml", list + " <br/>\n", Plain, Garbage},
		{"text/html", list, Plain, NoFailure},
		{"text/html; charset=", list, Plain, NoFailure},
		{"text/plain", "# <by hand>\n" + list, Plain, NoFailure},
		{"text/html", "# <by hand>\n" + list, Plain, NoFailure},
		{"text/plain", "<html>\n" + list, CSV, Garbage},
		{"text/html", "<RequireAll>\nDeny from 192.0.2.1\n</RequireAll>\n", Deny, NoFailure},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.contentType)
			_, _ = w.Write([]byte(c.text))
		}))
		conf := Config{Name: "list", Spec: DefaultSpec(Source{URL: URL(s.URL)})}
		if conf.Format.Kind = c.kind; c.kind == CSV {
			conf.Format.Column = "1"
		}
		o := fetch(t, mustOpen(t, conf, ""))
		if o.Failure != c.want || c.want == Garbage && !strings.HasPrefix(o.Err.Error(), s.URL+": ") || c.want == Garbage && !strings.Contains(o.Err.Error(), "a page of HTML or XML") {
			t.Errorf("%q, %.40q: %v, %v", c.contentType, c.text, o.Failure, o.Err)
		}
		s.Close()
	}
}

func TestTags(t *testing.T) {
	for text, want := range map[string]bool{"<": true, "a<": false, "a\n<": true, "a\n \t<b": true, "a \n b<": false, "": false} {
		for cut := range len(text) + 1 {
			var one tags
			if got := one.in([]byte(text[:cut])) || one.in([]byte(text[cut:])); got != want {
				t.Errorf("%q, cut at %d: %t", text, cut, got)
			}
		}
	}
}

package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A problem is logged when it begins, changes and ends, not each time that it is found.
func TestUnsavedIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	u := &upkeep{log: slog.New(slog.NewTextHandler(&log, nil))}
	full, readOnly := errors.New("disk full"), errors.New("read-only")
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{full, "would forget what was changed: disk full"}, {full, ""},
		{readOnly, "would forget what was changed: read-only"}, {readOnly, ""},
		{nil, "the state is on disk again"}, {nil, ""},
	} {
		log.Reset()
		u.noted(c.err)
		if got := log.String(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: logged %q, want %q", c.err, got, c.want)
		}
		if text := u.unsaved.Load(); (text == nil) != (c.err == nil) || text != nil && *text != c.err.Error() {
			t.Errorf("%v: noted %v", c.err, text)
		}
	}
}

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/tests/crash"
	"weir/tests/must"
	"weir/tests/wait"
)

func testAudit(t *testing.T) (a *Log, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	return New(t.TempDir(), slog.New(slog.NewTextHandler(log, nil))), log
}

// auditLines returns the records of a file, all of which must be whole.
func auditLines(t *testing.T, path string) (all []Record) {
	t.Helper()
	text := must.Read(t, path)
	for line := range strings.Lines(string(text)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestAudit(t *testing.T) {
	a, log := testAudit(t)
	r := Record{
		Time: time.Unix(1, 0).UTC(), Change: "block", List: "manual", Entries: 3, Changed: 2, First: []string{"192.0.2.1"},
		TTL: 3600, Reason: "scans",
	}
	By(&r, 0, "")
	a.Record(r)
	remote := Record{Time: r.Time, Change: Reload, Entries: 1, Changed: 1, First: []string{"mode: exact → approx"}}
	By(&remote, 1<<32-1, "CN=console")
	a.Record(remote)
	if got := auditLines(t, a.path); !reflect.DeepEqual(got, []Record{r, remote}) || got[0].User != "root" {
		t.Errorf("got %+v", got)
	}
	if s, err := os.Stat(a.path); err != nil || s.Mode() != 0o600 {
		t.Errorf("%v, %v", s.Mode(), err)
	}
	for _, want := range []string{
		"level=INFO msg=audit change=block list=manual entries=3 changed=2 first=[192.0.2.1] ttl=1h0m0s reason=scans uid=0 user=root source=socket\n",
		"source=\"CN=console\"\n",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %s", want, log)
		}
	}
}

// A file that is full becomes the predecessor, and the one before that goes.
func TestAuditRotates(t *testing.T) {
	a, log := testAudit(t)
	full := strings.Repeat("{}\n", maxFile/3)
	must.Write(t, a.path+".1", "{}\n")
	must.Write(t, a.path, full)
	a.Record(Record{Change: "block"})
	if got := auditLines(t, a.path); len(got) != 1 || got[0].Change != "block" {
		t.Errorf("%d records", len(got))
	}
	if before, err := os.ReadFile(a.path + ".1"); err != nil || string(before) != full {
		t.Errorf("%d bytes, %v", len(before), err)
	}
	files, err := os.ReadDir(filepath.Dir(a.path))
	if err != nil || len(files) != 2 || strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("%v, %v, %s", files, err, log)
	}
}

// A change is recorded, and a full file becomes the predecessor, also where the directory
// cannot be synced. If its sync fails once, after the renaming, the record repeats it.
func TestAuditWithoutDirectorySyncs(t *testing.T) {
	for _, x := range []struct {
		err   error
		times int
	}{{unix.EACCES, -1}, {unix.EINVAL, -1}, {unix.EOPNOTSUPP, -1}, {unix.EIO, 1}} {
		for full, text := range map[bool]string{false: "", true: strings.Repeat("{}\n", maxFile/3)} {
			if !full && x.times > 0 {
				continue // nothing syncs it again
			}
			t.Run(fmt.Sprintf("%v full=%t", x.err, full), func(t *testing.T) {
				a, log := testAudit(t)
				must.Write(t, a.path, text)
				crash.FailDirectories(t, x.err, x.times)
				a.Record(Record{Change: "block"})
				if got := auditLines(t, a.path); len(got) != 1 || got[0].Change != "block" || strings.Contains(log.String(), "level=ERROR") {
					t.Errorf("%d records, %s", len(got), log)
				}
				if before, err := os.ReadFile(a.path + ".1"); full && (err != nil || string(before) != text) {
					t.Errorf("%d bytes before, %v", len(before), err)
				}
			})
		}
	}
}

// A line whose writing was interrupted spoils no other.
func TestAuditAfterTornLine(t *testing.T) {
	a, _ := testAudit(t)
	must.Write(t, a.path, `{"change":"blo`)
	a.Record(Record{Change: "flush"})
	a.Record(Record{Change: "block"})
	text := must.Read(t, a.path)
	lines := strings.Split(string(text), "\n")
	if len(lines) != 4 || lines[0] != `{"change":"blo` || !strings.Contains(lines[1], `"flush"`) || !strings.Contains(lines[2], `"block"`) {
		t.Errorf("got %q", lines)
	}
}

// Zeros, which a power cut may leave of a line, spoil no other.
func TestAuditAfterZeros(t *testing.T) {
	a, _ := testAudit(t)
	must.Write(t, a.path, "\x00\x00"+`{"change":"flush"}`+"\n\x00")
	a.Record(Record{Change: "block"})
	var all []string
	for _, r := range New(filepath.Dir(a.path), a.log).last {
		all = append(all, r.Change)
	}
	if got := strings.Join(all, " "); got != "flush block" {
		t.Errorf("got %q", got)
	}
}

// What cannot be written is logged, whatever stands in the way.
func TestAuditFails(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
		"none":      func(path string) error { return os.Remove(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			a, log := testAudit(t)
			if err := prepare(a.path); err != nil {
				t.Fatal(err)
			}
			a.Record(Record{Change: "block"})
			if !strings.Contains(log.String(), "a change is missing in the audit") || !strings.Contains(log.String(), "msg=audit change=block") {
				t.Errorf("the log is %s", log)
			}
		})
	}
}

// Texts from outside are bounded, and stay valid.
func TestAuditBounds(t *testing.T) {
	a, log := testAudit(t)
	long := strings.Repeat("é", 1<<16)
	a.Record(Record{Change: "block", First: []string{long}, Reason: long, Source: long})
	got := auditLines(t, a.path)
	if n := log.Len(); len(got) != 1 || n > 4096 || strings.ContainsRune(got[0].Reason, '�') {
		t.Errorf("%d bytes, %+v", n, got)
	}
}

// What was changed before a restart is shown after it, with what came since: the latest
// first, and no more than is asked for. Torn lines are left out.
func TestAuditIsShown(t *testing.T) {
	a, _ := testAudit(t)
	var before strings.Builder
	for i := range api.MaxAudit + 5 {
		fmt.Fprintf(&before, "{\"change\": \"block\", \"entries\": %d}\n", i)
	}
	must.Write(t, a.path+".1", before.String())
	must.Write(t, a.path, "{\"change\": \"flush\"}\n{\"chan")
	again := New(filepath.Dir(a.path), slog.New(slog.DiscardHandler))
	again.Record(Record{Change: "allow"})
	last := again.Last(3)
	if len(last) != 3 || last[0].Change != "allow" || last[1].Change != "flush" || last[2].Entries != api.MaxAudit+4 {
		t.Errorf("%+v", last)
	}
	if all := again.Last(api.MaxAudit); len(all) != api.MaxAudit {
		t.Errorf("%d changes", len(all))
	}
}

// TestDurable lets the machine crash, and steps fail, while changes are recorded, each by
// another process or all by one. Those that were are there, and the second one of a process takes
// one sync.
func TestDurable(t *testing.T) {
	for _, one := range []bool{false, true} {
		t.Run(fmt.Sprintf("one process=%t", one), func(t *testing.T) { testDurable(t, one) })
	}
}

func testDurable(t *testing.T, one bool) {
	recorded := func(dir string) string {
		var all []string
		for _, r := range New(dir, slog.New(slog.DiscardHandler)).last {
			all = append(all, r.List)
		}
		return strings.Join(all, " ")
	}
	crash.Test{
		Work: func(t *testing.T, d *crash.Disk) {
			all := ""
			var log bytes.Buffer
			var a *Log
			for i, name := range []string{"one", "two", "three", "four"} {
				next := strings.TrimLeft(all+" "+name, " ")
				log.Reset()
				syncs := d.Count("sync")
				failed := d.Do(func() error {
					if a == nil || !one {
						a = New(d.Dir, slog.New(slog.NewTextHandler(&log, nil)))
					}
					if a.Record(Record{Change: "block", List: name, Time: time.Unix(1, 0)}); strings.Contains(log.String(), "is missing") {
						return errors.New("not recorded")
					}
					return nil
				}, next)
				if syncs = d.Count("sync") - syncs; one && i > 0 && !d.Fails() && syncs != 1 {
					t.Errorf("record %d took %d syncs", i+1, syncs)
				}
				left := recorded(d.Dir)
				switch {
				case failed == nil && left == next:
					all = next
				case failed != nil && left == next:
					return // it may be there
				case failed == nil || left != all:
					t.Errorf("recorded are %q, before %q: %v", left, all, failed)
				}
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) { return recorded(dir), nil },
	}.Run(t)
}

// Lines of another process stay, and a file that was replaced gets the next ones.
func TestAuditBesideAnother(t *testing.T) {
	a, _ := testAudit(t)
	b := New(filepath.Dir(a.path), a.log)
	for _, of := range []*Log{a, b, a, a, b, b} {
		of.Record(Record{Change: "block"})
	}
	if n := len(auditLines(t, a.path)); n != 6 {
		t.Errorf("%d records, want 6", n)
	}
	if err := os.Rename(a.path, a.path+".kept"); err != nil {
		t.Fatal(err)
	}
	b.Record(Record{Change: "flush"})
	if n := len(auditLines(t, a.path)); n != 1 {
		t.Errorf("%d records in the new file, want 1", n)
	}
}

// A log that is read again has what another process has written meanwhile.
func TestReread(t *testing.T) {
	dir := t.TempDir()
	former, log := New(dir, slog.New(slog.DiscardHandler)), New(dir, slog.New(slog.DiscardHandler))
	former.Record(Record{Change: Stop})
	wait.For(t, "the record of the former process", func() bool { log.Reread(); return len(log.Last(1)) == 1 })
	if last := log.Last(2); len(last) != 1 || last[0].Change != Stop {
		t.Errorf("%+v", last)
	}
}

// A change that failed in part is recorded, however many were refused.
func TestAttempt(t *testing.T) {
	a := New("", slog.New(slog.DiscardHandler))
	failed := errors.New("no memory")
	for range maxRefused + 5 {
		a.Attempt(Record{Change: Accept}, failed)
	}
	if n := len(a.Last(api.MaxAudit)); n != maxRefused {
		t.Errorf("%d refused changes are recorded, want %d", n, maxRefused)
	}
	a.Attempt(Record{Change: Accept, Changed: 1}, failed)
	if got := a.Last(1)[0]; got.Changed != 1 || got.Error != failed.Error() {
		t.Errorf("failed in part: %+v", got)
	}
	a.Attempt(Record{Change: Accept}, nil)
	if got := a.Last(1)[0]; got.Changed != 0 || got.Error != "" {
		t.Errorf("made: %+v", got)
	}
}

// A start names the interfaces that the last daemon left filtered, and that nothing filters any more: not after a
// stop that detached them, weir detach, or a boot, and not those that are gone themselves.
func TestGoneProgram(t *testing.T) {
	wan, lan, dmz := "wan0", "lan0", "dmz0"
	long := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		between func(*Log)
		booted  time.Time
		want    []string
	}{
		"killed":           {func(*Log) {}, long, []string{lan}},
		"stopped":          {func(a *Log) { a.Stopped([]string{wan, lan}, true) }, long, []string{lan}},
		"detached at stop": {func(a *Log) { a.Stopped([]string{wan, lan}, false) }, long, nil},
		"detached":         {func(a *Log) { a.Record(Record{Change: Detach, First: []string{lan}}) }, long, nil},
		"booted":           {func(*Log) {}, time.Now().Add(time.Hour), nil},
	} {
		a := New(t.TempDir(), slog.New(slog.DiscardHandler))
		if gone := a.Started([]string{wan, lan, dmz}, nil, c.booted); gone != nil {
			t.Errorf("%s: the first start: %q", name, gone)
		}
		c.between(a)
		if gone := a.Started([]string{wan, lan}, []string{wan}, c.booted); !slices.Equal(gone, c.want) {
			t.Errorf("%s: %q, want %q", name, gone, c.want)
		}
	}
}

// Sessions of the console have no entries: the record says what was done.
func TestConsoleRecords(t *testing.T) {
	for change, want := range map[string]string{Console: "opened the console", ConsoleEnd: "ended the console's sessions"} {
		if got := (&Record{Change: change}).What(); got != want {
			t.Errorf("%s: %q, want %q", change, got, want)
		}
	}
}

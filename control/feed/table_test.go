package feed

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"weir/control/list/listfile"
	"weir/tests/must"
)

var update = flag.Bool("update", false, "write what the table of formats says into docs/lists.md")

const docsFile = "../../docs/lists.md"

// sampleText returns the sample of a format, a database for mmdb.
func sampleText(t *testing.T, f *format) []byte {
	t.Helper()
	if f == &mmdbFormat {
		return countries(t, map[string]string{"192.0.2.0/24": "KP", "198.51.100.0/24": "RU", "203.0.113.0/24": "DE"})
	}
	text, err := os.ReadFile("testdata/formats/" + f.Name)
	if err != nil {
		t.Fatalf("a format needs a sample: %v", err)
	}
	return text
}

// exampleOf returns the format that a row has as its example.
func exampleOf(t *testing.T, f *format) Format {
	t.Helper()
	text := strings.Trim(f.Example, "{}")
	text = strings.NewReplacer("kind: ", "", ": ", "=", ", ", ",", "[", "", "]", "", `"`, "").Replace(text)
	if f == &jsonFormat {
		text = "json,path=.data[].ip" // has brackets of its own
	}
	format, err := ParseFormat(text)
	if err != nil {
		t.Fatalf("%s: %v", f.Example, err)
	}
	return format
}

// Each format has all that its row promises, and reads its sample; docs/lists.md says so.
func TestFormatsDocumented(t *testing.T) {
	if len(formats) < 17 {
		t.Fatalf("%d formats", len(formats))
	}
	var docs strings.Builder
	for _, f := range formats {
		if f.About == "" || f.Grammar == "" || f.Example == "" {
			t.Errorf("%s: incomplete", f.Name)
		}
		format := exampleOf(t, f)
		if format.Kind.row() != f {
			t.Errorf("%s: the example is of %v", f.Name, format.Kind)
		}
		if again, err := ParseFormat(format.String()); err != nil || again.String() != format.String() {
			t.Errorf("%s: written as %s: %v", f.Name, format, err)
		}
		for i, o := range format.options() {
			if slices.Contains(f.Options, o.name) {
				continue
			}
			wrong := format
			value := map[string]string{"database": "/a", "countries": "DE", "except": "DE", "separator": ";"}[o.name]
			if err := addOption(wrong.options()[i].value, cmp.Or(value, "1")); err != nil {
				t.Fatal(err)
			}
			if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), o.name+" goes with format ") {
				t.Errorf("%v: %v", wrong, err)
			}
		}
		text := sampleText(t, f)
		e, report, err := Read(f.Name, bytes.NewReader(text), format, enough, listfile.Options{MaxBad: 1})
		head := "`" + f.Example + "`: " + f.About + "."
		if len(f.Options) > 0 {
			head += " Options: `" + strings.Join(f.Options, "`, `") + "`."
		}
		fmt.Fprintf(&docs, "\n### %s\n\n%s\n", f.Name, wrap(head))
		if f.whole == nil {
			fmt.Fprintf(&docs, "\n    %s\n", strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(string(text)), "\t", "    "), "\n", "\n    "))
		}
		fmt.Fprintf(&docs, "\n%s\n", wrap(f.Grammar))
		switch {
		case !f.isFile():
			if err == nil || !strings.Contains(err.Error(), "only the daemon reads it") {
				t.Errorf("%s: %v, without a daemon", f.Name, err)
			}
			continue
		case err != nil || e.Len() == 0:
			t.Errorf("%s: the sample has %d entries, %v", f.Name, e.Len(), err)
		case f.whole == nil:
			fmt.Fprintf(&docs, "\n%s\n", wrap(result(textsOf(e.Set()), report)))
		}
	}
	page := must.Read(t, docsFile)
	const from, to = "<!-- formats: generated -->\n", "\n<!-- end of formats -->"
	before, rest, ok := strings.Cut(string(page), from)
	_, after, both := strings.Cut(rest, to)
	if !ok || !both {
		t.Fatalf("%s has no place for formats", docsFile)
	}
	want := before + from + docs.String() + to + after
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(page) != want {
		t.Errorf("%s is not what the table of formats says: go test ./control/feed -run TestFormatsDocumented -update", docsFile)
	}
}

// result says what a sample is read as.
func result(entries []string, r listfile.Report) string {
	text := "Entries of the sample: `" + strings.Join(entries, "`, `") + "`."
	if left := r.Skipped(); len(left) > 0 {
		text += " Left out: " + strings.Join(left, ", ") + "."
	}
	for _, bad := range r.Errors {
		text += fmt.Sprintf(" Line %d is bad: %v.", bad.Line, bad.Err)
	}
	return text
}

// wrap breaks a text into lines of 100 columns.
func wrap(text string) string {
	var lines []string
	line := ""
	for w := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(w) > 100 {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+w, " ")
	}
	return strings.Join(append(lines, line), "\n")
}

// A kind that the table does not have is an error wherever it is used, never an empty list.
func TestUnknownFormat(t *testing.T) {
	for _, f := range []Format{{Kind: "other"}, {Kind: "CSV", Column: "1"}} {
		e, _, err := Read("x", strings.NewReader("192.0.2.1\n"), f, enough, listfile.Options{})
		if err == nil || e.Len() > 0 || !strings.Contains(err.Error(), "unknown format") {
			t.Errorf("%v: %d entries, %v", f, e.Len(), err)
		}
	}
	if _, err := ParseFormat("csv,column=1,sets=x"); err == nil || err.Error() != "sets goes with format nftables or ipset only" {
		t.Errorf("an option of others: %v", err)
	}
}

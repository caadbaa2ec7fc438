// Man writes the man pages of section 5, weir.yaml(5) from the schema of the
// configuration and weir-lists(5) from docs/lists.md, below a directory:
//
//	go run ./tests/man dist/share v1.2.3
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

const (
	schemaFile  = "control/config/weir.schema.json"
	exampleFile = "control/config/weir.yaml"
	listsFile   = "docs/lists.md"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: man DIRECTORY VERSION")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(dir, version string) error {
	dir = filepath.Join(dir, "man", "man5")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	configuration, err := configurationPage()
	if err != nil {
		return err
	}
	lists, err := listsPage()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"weir.yaml": configuration, "weir-lists": lists} {
		title := fmt.Sprintf("%% %s 5 \"\" \"weir %s\" \"\"\n\n", strings.ToUpper(name), version)
		if err := os.WriteFile(filepath.Join(dir, name+".5"), md2man.Render([]byte(title+text)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// schema is the part of a JSON schema that the page shows.
type schema struct {
	Description string             `json:"description"`
	Default     any                `json:"default"`
	Enum        []string           `json:"enum"`
	Type        any                `json:"type"`
	Minimum     *float64           `json:"minimum"`
	Maximum     *float64           `json:"maximum"`
	Properties  map[string]*schema `json:"properties"`
	Items       *schema            `json:"items"`
	AnyOf       []*schema          `json:"anyOf"`
	Additional  json.RawMessage    `json:"additionalProperties"` // a schema, or false
}

func configurationPage() (string, error) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		return "", err
	}
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		return "", fmt.Errorf("%s: %w", schemaFile, err)
	}
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# NAME

weir.yaml - configuration of weir

# SYNOPSIS

/etc/weir/weir.yaml

# DESCRIPTION

The configuration of **weir run** with **--config**, and of the service, in YAML.
**weir check** reports what is wrong with it, with line and column; **weir reload**
reads it again.

# KEYS

*NAME* stands for any name; **[]** for each element of a list. A key whose elements have a
short form may be written so: a name instead of an interface, a kind instead of a format.

`)
	if err := root.write(&b, ""); err != nil {
		return "", fmt.Errorf("%s: %w", schemaFile, err)
	}
	b.WriteString("# EXAMPLE\n\n")
	for line := range strings.Lines(string(example)) {
		b.WriteString("    " + line)
	}
	b.WriteString("\n# SEE ALSO\n\n**weir**(8), **weir-run**(8), **weir-check**(8), **weir-lists**(5)\n")
	return b.String(), nil
}

// write writes the keys below a path.
func (s *schema) write(b *strings.Builder, path string) error {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		key := path + name
		if p.Description == "" {
			return fmt.Errorf("%s has no description", key)
		}
		fmt.Fprintf(b, "**%s**\n: %s\n\n", escape(key), escape(p.Description+p.limits()))
		if err := p.below(b, key); err != nil {
			return err
		}
	}
	return nil
}

// below writes the keys of a value: of a mapping, of the elements of a list, or of one
// of several forms.
func (s *schema) below(b *strings.Builder, path string) error {
	if err := s.write(b, path+"."); err != nil {
		return err
	}
	if s.Items != nil {
		if err := s.Items.below(b, path+"[]"); err != nil {
			return err
		}
	}
	for _, form := range s.AnyOf {
		if err := form.below(b, path); err != nil {
			return err
		}
	}
	var additional schema
	if json.Unmarshal(s.Additional, &additional) == nil { // not false
		return additional.below(b, path+".NAME")
	}
	return nil
}

// limits says which values there are, as far as the schema has them apart from the
// description.
func (s *schema) limits() string {
	var text string
	if len(s.Enum) > 0 {
		text += " One of " + strings.Join(s.Enum, ", ") + "."
	}
	if s.Minimum != nil && s.Maximum != nil {
		text += fmt.Sprintf(" From %.0f to %.0f.", *s.Minimum, *s.Maximum)
	}
	if s.Default != nil {
		text += fmt.Sprintf(" Default: %v.", s.Default)
	}
	return text
}

// link matches a link of Markdown, of which a page keeps the text.
var link = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`)

func listsPage() (string, error) {
	text, err := os.ReadFile(listsFile)
	if err != nil {
		return "", err
	}
	_, body, found := strings.Cut(string(text), "# Lists\n")
	if !found {
		return "", fmt.Errorf("%s: no heading", listsFile)
	}
	return "# NAME\n\nweir-lists - formats of weir's lists\n\n# DESCRIPTION\n" + definitions(link.ReplaceAllString(body, "$1")) +
		"\n# SEE ALSO\n\n**weir**(8), **weir-run**(8), **weir.yaml**(5)\n", nil
}

// definitions writes tables of two columns as lists of definitions, which fit a
// terminal of any width.
func definitions(text string) string {
	var b strings.Builder
	row := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|--") {
			row = 0
			b.WriteString(line)
			continue
		}
		if row++; row <= 2 {
			continue // the names of the columns, and the line below
		}
		name, meaning, _ := strings.Cut(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		fmt.Fprintf(&b, "%s\n: %s\n\n", strings.TrimSpace(name), strings.TrimSpace(meaning))
	}
	return b.String()
}

var special = regexp.MustCompile("[\\\\`*_{}\\[\\]<>#|~]")

// escape escapes what Markdown would take for markup.
func escape(text string) string {
	return special.ReplaceAllString(cmp.Or(text, " "), `\$0`)
}

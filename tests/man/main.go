// Man writes the man pages of section 5: weir.yaml(5) and hub.yaml(5) from the schemas
// of the configurations, and weir-lists(5) from docs/lists.md. The hub's has a directory
// of its own:
//
//	go run ./tests/man dist/share dist/share-hub v1.2.3
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

const listsFile = "docs/lists.md"

// configuration is a configuration file that has a page.
type configuration struct {
	name, schema, example string
	is, path, about       string
	seeAlso               string
}

var daemon = configuration{
	name: "weir.yaml", schema: "control/config/weir.schema.json", example: "control/config/weir.yaml",
	is: "configuration of weir", path: "/etc/weir/weir.yaml",
	about: `The configuration of **weir run** with **--config**, and of the service, in YAML.
**weir check** reports what is wrong with it, with line and column; **weir reload**
reads it again. *state_dir*, *pins*, *api*, *metrics*, *console* and *fleet* change with a restart only.`,
	seeAlso: "**weir**(8), **weir-run**(8), **weir-check**(8), **weir-lists**(5)",
}

var hub = configuration{
	name: "hub.yaml", schema: "control/config/hub.schema.json", example: "control/config/hub.yaml",
	is: "configuration of the hub of a fleet", path: "/etc/weir-hub/hub.yaml",
	about: `The configuration of **weir-hub run** with **--config**, and of its service, in YAML.
**weir hub check** reports what is wrong with it; **weir fleet reload** reads it again.
*keys*, *state_dir*, *servers*, *sites*, *broker*, *api* and *console* change with a restart only.`,
	seeAlso: "**weir-hub**(8), **weir-hub-run**(8), **weir-lists**(5)",
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: man DIRECTORY DIRECTORY-OF-THE-HUB VERSION")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(dir, hubDir, version string) error {
	lists, err := listsPage()
	if err != nil {
		return err
	}
	if err := write(dir, "weir-lists", version, lists); err != nil {
		return err
	}
	for dir, c := range map[string]configuration{dir: daemon, hubDir: hub} {
		text, err := c.page()
		if err != nil {
			return err
		}
		if err := write(dir, c.name, version, text); err != nil {
			return err
		}
	}
	return nil
}

func write(dir, name, version, text string) error {
	dir = filepath.Join(dir, "man", "man5")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	title := fmt.Sprintf("%% %s 5 \"\" \"weir %s\" \"\"\n\n", strings.ToUpper(name), version)
	return os.WriteFile(filepath.Join(dir, name+".5"), md2man.Render([]byte(title+text)), 0o644)
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

func (c configuration) page() (string, error) {
	text, err := os.ReadFile(c.schema)
	if err != nil {
		return "", err
	}
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		return "", fmt.Errorf("%s: %w", c.schema, err)
	}
	example, err := os.ReadFile(c.example)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# NAME

%s - %s

# SYNOPSIS

%s

# DESCRIPTION

%s

# KEYS

*NAME* stands for any name; **[]** for each element of a list. A key whose elements have a
short form may be written so: a name instead of an interface, a kind instead of a format.

`, c.name, c.is, c.path, c.about)
	if err := root.write(&b, ""); err != nil {
		return "", fmt.Errorf("%s: %w", c.schema, err)
	}
	b.WriteString("# EXAMPLE\n\n")
	for line := range strings.Lines(string(example)) {
		b.WriteString("    " + line)
	}
	fmt.Fprintf(&b, "\n# SEE ALSO\n\n%s\n", c.seeAlso)
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

package config

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/control/endpoint"
	"weir/control/engine"
	"weir/control/export"
	"weir/control/feed"
	"weir/control/notify"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stage/first"
	"weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/control/stage/syncookies"
	"weir/control/stage/tracker"
	"weir/filter/membership"
	"weir/filter/recent"
	"weir/filter/sfb"
	"weir/filter/verdict"
	"weir/loader/hooks"
)

var update = flag.Bool("update", false, "write weir.schema.json")

const schemaFile = "weir.schema.json"

var (
	//go:embed weir.schema.json
	published []byte

	//go:embed hub.schema.json
	publishedOfHub []byte
)

// TestSchema holds the published schemas to the types and their comments.
func TestSchema(t *testing.T) {
	g := generator{t, comments(t)}
	for _, c := range []struct {
		file, title, description string
		published                []byte
		defaults                 any
	}{
		{schemaFile, "weir.yaml", "weir's configuration.", published, Default()},
		{"hub.schema.json", "hub.yaml", "The configuration of the hub of a fleet.", publishedOfHub, DefaultHub()},
	} {
		schema := g.of(reflect.ValueOf(c.defaults).Elem(), c.description)
		schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		schema["title"] = c.title
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(schema); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(c.file, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !bytes.Equal(c.published, want.Bytes()) {
			t.Errorf("%s is not what the types say: go test ./control/config -run TestSchema -update", c.file)
		}
	}
}

// instead matches a line of the example whose remark has other keys instead: one with a
// mapping, or some with scalars.
var instead = regexp.MustCompile(`(?m)^( *)[a-z0-9_]+: .*# .*\bor, instead of it, ([a-z0-9_]+: (?:\{.*?\}|[^;\n]+)).*$`)

// braced matches an element of a list that is commented out, and is a mapping within braces.
var braced = regexp.MustCompile(`(?m)^( *)# ( *- \{.*\})$`)

// alternatives is the example with what cannot be beside the rest: the keys that remarks have,
// and elements within braces.
func alternatives() string {
	return instead.ReplaceAllStringFunc(braced.ReplaceAllString(everything(), "$1$2"), func(line string) string {
		m := instead.FindStringSubmatch(line)
		if strings.Contains(m[2], "{") {
			return m[1] + m[2]
		}
		return m[1] + strings.ReplaceAll(m[2], ", ", "\n"+m[1])
	})
}

// TestExampleShowsEachKey compares the example, with all that is commented out, and with its
// alternatives, with the schema. A key is shown in its own place only, whatever other
// sections call theirs.
func TestExampleShowsEachKey(t *testing.T) {
	var schema any
	if err := json.Unmarshal(published, &schema); err != nil {
		t.Fatal(err)
	}
	var examples []any
	for _, text := range []string{everything(), alternatives()} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		examples = append(examples, v)
	}
	if n := len(unshown(schema, nil, "")); n < 20 {
		t.Fatalf("%d keys in the schema", n)
	}
	for _, path := range unshown(schema, examples, "") {
		if path == "lists[].labels" {
			continue // of a hub, whose example shows it
		}
		t.Errorf("weir.yaml does not show %s", path)
	}
}

// unshown returns the paths of keys in a schema that none of the values for it has, each
// without the keys below.
func unshown(schema any, values []any, path string) (missing []string) {
	s, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	var below []any // elements of lists, and of mappings whose keys are names
	for _, v := range values {
		switch v := v.(type) {
		case []any:
			below = append(below, v...)
		case map[string]any:
			below = slices.AppendSeq(below, maps.Values(v))
		}
	}
	missing = append(unshown(s["items"], below, path+"[]"), unshown(s["additionalProperties"], below, path+"[]")...)
	alternatives, _ := s["anyOf"].([]any)
	for _, a := range alternatives {
		missing = append(missing, unshown(a, values, path)...)
	}
	properties, _ := s["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		at := strings.TrimPrefix(path+"."+key, ".")
		var of []any
		for _, v := range values {
			if v, ok := v.(map[string]any); ok {
				if v, there := v[key]; there {
					of = append(of, v)
				}
			}
		}
		if of == nil {
			missing = append(missing, at)
		} else {
			missing = append(missing, unshown(properties[key], of, at)...)
		}
	}
	return missing
}

// comments reads the comments of the fields of the types of a configuration, by
// type and field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	files := []string{"config.go", "derived.go", "hub.go", "only.go", "rollout.go", "../stage/tracker/section.go", "../stage/tracker/spec.go", "../stage/tracker/scan.go", "../feed/spec.go", "../feed/format.go", "../feed/source.go", "../endpoint/tls.go", "../export/spec.go", "../notify/target.go", "../notify/surge.go", "../geo/geo.go", "../stages/stages.go"}
	stages, err := filepath.Glob("../stage/*/*.go")
	if err != nil || len(stages) < 7 {
		t.Fatalf("%d files of stages, %v", len(stages), err)
	}
	for _, file := range append(files, stages...) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					if len(field.Names) > 0 {
						text := strings.Join(strings.Fields(field.Doc.Text()), " ")
						all[f.Name.Name+"."+spec.Name.Name+"."+field.Names[0].Name] = text
					}
				}
			}
			return true
		})
	}
	return all
}

// Numbers of quantities, as patterns.
const (
	decimal = `[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?`
	rate    = decimal + `[kKMGT]?(pps|bit/s|bps|B/s|/s)`
	span    = `(` + decimal + `d)?([0-9]+(\.[0-9]+)?(h|m|s|ms|us|µs|ns))*`
)

// scalar is the schema of a type that is written as a scalar.
func scalar(t *testing.T, of reflect.Type) map[string]any {
	t.Helper()
	enum := func(names ...string) map[string]any { return map[string]any{"enum": names} }
	text := func(pattern string) map[string]any { return map[string]any{"type": "string", "pattern": pattern} }
	number := func(pattern string, most float64) map[string]any {
		return map[string]any{"anyOf": []any{text(pattern), map[string]any{"type": "number", "minimum": 0, "maximum": most}}}
	}
	s := map[reflect.Type]map[string]any{
		reflect.TypeFor[membership.Mode]():        enum("exact", "approx"),
		reflect.TypeFor[hooks.Hook]():             enum("native", "generic"),
		reflect.TypeFor[verdict.Action]():         enum("pass", "drop"),
		reflect.TypeFor[sfb.Controller]():         enum("fair", "blue", "bucket"),
		reflect.TypeFor[syncookies.Mode]():        enum(syncookies.Modes...),
		reflect.TypeFor[first.Importance]():       enum("size", "list"),
		reflect.TypeFor[recent.Kind]():            enum("bloom", "stable", "ibf-2c", "ibf-mc"),
		reflect.TypeFor[engine.Direction]():       enum("src", "dst", "both", "out"),
		reflect.TypeFor[quantity.Unit]():          enum("packets", "bytes"),
		reflect.TypeFor[feed.Kind]():              enum(formatNames("")...),
		reflect.TypeFor[feed.Name]():              enum(feedNames()...),
		reflect.TypeFor[Action]():                 enum("block", "allow"),
		reflect.TypeFor[tracker.Action]():         enum("report", "limit", "block"),
		reflect.TypeFor[tracker.Distinct]():       enum("ports", "addresses"),
		reflect.TypeFor[loop.Action]():            enum("report", "drop"),
		reflect.TypeFor[WaveMode]():               enum("rehearse", "enforce"),
		reflect.TypeFor[First]():                  enum("waves", "at_once"),
		reflect.TypeFor[Hook]():                   enum("xdp", "tc"),
		reflect.TypeFor[Attach]():                 enum("link", "dispatcher"),
		reflect.TypeFor[FloodApply]():             enum("ask", "auto"),
		reflect.TypeFor[LogFormat]():              enum("text", "json"),
		reflect.TypeFor[TLSFirst]():               enum("accept", "require"),
		reflect.TypeFor[LogLevel]():               enum("debug", "info", "warn", "error"),
		reflect.TypeFor[quantity.Duration]():      text(`^` + span + `$`),
		reflect.TypeFor[quantity.Share]():         number(`^`+decimal+`%?$`, 1),
		reflect.TypeFor[quantity.Size]():          number(`^`+decimal+`([KMGT]iB|[kKMGT]?B)?$`, 1<<53),
		reflect.TypeFor[quantity.Count]():         number(`^`+decimal+`[kKMGT]?$`, 1<<53),
		reflect.TypeFor[Most]():                   number(`^(any|`+decimal+`[kKMGT]?)$`, 1<<53),
		reflect.TypeFor[quantity.Rate]():          text(`^` + rate + `$`),
		reflect.TypeFor[tracker.Threshold]():      text(`^(` + rate + `|` + decimal + `%)(\+(` + rate + `|` + decimal + `%))?$`),
		reflect.TypeFor[stage.Key]():              text(`^(flow|(src|dst)(/[0-9]+)?)$`),
		reflect.TypeFor[Path]():                   text(`^(/.*)?$`),
		reflect.TypeFor[feed.Country]():           text(`^[A-Z]{2}$`),
		reflect.TypeFor[feed.ASN]():               text(`^(AS)?[0-9]+$`),
		reflect.TypeFor[feed.SHA256]():            text(`^[0-9a-fA-F]{64}$`),
		reflect.TypeFor[feed.Separator]():         text(`^([^\r\n"]|\\t)$`),
		reflect.TypeFor[Address]():                text(`:[0-9]+$`),
		reflect.TypeFor[verdict.FailsafePort]():   text(`^((tcp|udp|sctp)/[0-9]+|[0-9]+/(tcp|udp|sctp))$`),
		reflect.TypeFor[verdict.FailsafeICMP]():   enum("errors", "echo-request", "echo-reply"),
		reflect.TypeFor[verdict.PortRange]():      text(`^[a-z]+/[0-9]+(-[0-9]+)?$`),
		reflect.TypeFor[Protocol]():               {"type": []string{"string", "integer"}, "pattern": `^[a-z0-9]+$`, "minimum": 0, "maximum": 255},
		reflect.TypeFor[verdict.FailsafePrefix](): text(`^[0-9a-fA-F:.]+(/[0-9]+)?$`),
		reflect.TypeFor[multicast.Group]():        text(`^[0-9a-fA-F:.]+$`),
		reflect.TypeFor[feed.URL]():               text(`^https?://`),
		reflect.TypeFor[notify.URL]():             text(`^https?://`),
		reflect.TypeFor[endpoint.URL]():           text(`^(udp|tcp|tls)://[^/]+:[0-9]+$`),
		reflect.TypeFor[notify.Format]():          enum("rfc5424", "cef"),
		reflect.TypeFor[export.Drops]():           enum("samples", "notifications"),
		reflect.TypeFor[notify.Secret]():          {"type": "string", "minLength": 16, "maxLength": 4096},
		reflect.TypeFor[notify.Kind]():            enum("heavy", "penalty", "feed", "interface", "refused", "surge"),
	}[of]
	if s == nil {
		t.Fatalf("no schema for %v", of)
	}
	return s
}

// formatNames returns the names of the formats with an option, "" for all.
func formatNames(option string) []string {
	var names []string
	for _, f := range feed.Formats() {
		if option == "" || slices.Contains(f.Options, option) {
			names = append(names, f.Name)
		}
	}
	return names
}

// formatText says which formats an option is for, and what the formats are.
func formatText(option, text string) string {
	if option != "kind" {
		return "For " + strings.Join(formatNames(option), ", ") + ": " + text
	}
	for _, f := range feed.Formats() {
		text += " " + f.Name + ": " + f.About + "."
	}
	return text
}

// feedNames returns the names of the known feeds.
func feedNames() []string {
	var names []string
	for _, k := range feed.Catalog() {
		names = append(names, string(k.Name))
	}
	return names
}

// generator makes the schema of types.
type generator struct {
	t        *testing.T
	comments map[string]string
}

func (g generator) of(v reflect.Value, description string) map[string]any {
	s := g.bare(v)
	s["description"] = description
	return s
}

// bare is the schema of a value's type, without description; the value has the
// defaults.
func (g generator) bare(v reflect.Value) map[string]any {
	t := v.Type()
	if isText(t) {
		return scalar(g.t, t)
	}
	orNull := func(kind string) map[string]any { return map[string]any{"type": []string{kind, "null"}} }
	switch t.Kind() {
	case reflect.Struct:
		if v.IsZero() { // it is not there by default
			v = element(t)
		}
		return g.structure(v)
	case reflect.Slice:
		elem := g.bare(element(t.Elem()))
		if _, ok := keyField(t.Elem()); ok {
			s := orNull("object")
			s["propertyNames"] = map[string]any{"pattern": namePattern, "maxLength": maxName}
			s["additionalProperties"] = elem
			return s
		}
		s := orNull("array")
		s["items"] = elem
		return s
	case reflect.Map:
		s := orNull("object")
		s["additionalProperties"] = g.bare(element(t.Elem()))
		return s
	}
	names := map[reflect.Kind]any{
		reflect.String: []string{"string", "number"}, reflect.Bool: "boolean",
		reflect.Int: "integer", reflect.Float64: "number",
	}
	if names[t.Kind()] == nil {
		g.t.Fatalf("no schema for %v", t)
	}
	return map[string]any{"type": names[t.Kind()]}
}

func (g generator) structure(v reflect.Value) map[string]any {
	t := v.Type()
	properties, required := map[string]any{}, []string{}
	for _, f := range fields(t) {
		if f.isKey {
			continue
		}
		fv := v.FieldByIndex(f.index)
		text := g.comments[owner(t, f.index)+"."+t.FieldByIndex(f.index).Name]
		if text == "" {
			g.t.Errorf("%s.%s has no comment", t.Name(), t.FieldByIndex(f.index).Name)
		}
		if t == reflect.TypeFor[feed.Format]() {
			text = formatText(f.name, text)
		}
		p := g.of(fv, text)
		if f.min != "" {
			p["minimum"], p["maximum"] = bound(g.t, f.min), bound(g.t, f.max)
		}
		switch {
		case f.required:
			required = append(required, f.name)
		case strings.Contains(text, "Default: "): // it depends on other keys
		case !f.omitEmpty && (isText(fv.Type()) || fv.Kind() != reflect.Struct):
			p["default"] = defaultOf(fv)
		}
		properties[f.name] = p
	}
	s := map[string]any{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["type"], s["required"] = "object", required
	}
	if f, ok := shortField(t); ok {
		return map[string]any{"anyOf": []any{s, g.bare(v.FieldByIndex(f.index))}}
	}
	return s
}

// owner is the type that has a field, which may be embedded.
func owner(t reflect.Type, index []int) string {
	if len(index) > 1 {
		t = t.FieldByIndex(index[:len(index)-1]).Type
	}
	return t.String()
}

// defaultOf is a default in JSON.
func defaultOf(v reflect.Value) any {
	if isText(v.Type()) {
		return textOf(v)
	}
	return v.Interface()
}

func bound(t *testing.T, s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// compiled is the schema, ready to hold values against.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(published))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaFile, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaFile)
})

// validate holds YAML against the schema.
func validate(t *testing.T, text []byte) error {
	t.Helper()
	schema, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

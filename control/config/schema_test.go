package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write weir.schema.json")

const schemaFile = "weir.schema.json"

// TestSchema holds the published schema to the types and their comments.
func TestSchema(t *testing.T) {
	g := generator{t, comments(t)}
	schema := g.of(reflect.ValueOf(Default()).Elem(), "weir's configuration.")
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "weir.yaml"
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(schema); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(Schema, want.Bytes()) {
		t.Errorf("%s is not what the types say: go test ./control/config -run TestSchema -update", schemaFile)
	}
}

// comments reads the comments of the fields of config.go, by type and field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				text := strings.Join(strings.Fields(f.Doc.Text()), " ")
				all[spec.Name.Name+"."+f.Names[0].Name] = text
			}
		}
		return true
	})
	return all
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
	if c, ok := codecs[t]; ok {
		return maps.Clone(c.schema)
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
		fv := v.Field(f.index)
		text := g.comments[t.Name()+"."+t.Field(f.index).Name]
		if text == "" {
			g.t.Errorf("%s.%s has no comment", t.Name(), t.Field(f.index).Name)
		}
		p := g.of(fv, text)
		if f.min != "" {
			p["minimum"], p["maximum"] = bound(g.t, f.min), bound(g.t, f.max)
		}
		_, scalar := codecs[fv.Type()]
		switch {
		case f.required:
			required = append(required, f.name)
		case !f.omitEmpty && (scalar || fv.Kind() != reflect.Struct):
			p["default"] = defaultOf(fv)
		}
		properties[f.name] = p
	}
	s := map[string]any{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["type"], s["required"] = "object", required
	}
	if f, ok := shortField(t); ok {
		return map[string]any{"anyOf": []any{s, g.bare(v.Field(f.index))}}
	}
	return s
}

// defaultOf is a default in JSON.
func defaultOf(v reflect.Value) any {
	if c, ok := codecs[v.Type()]; ok {
		return c.format(v)
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
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
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

package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"weir/tests/must"
)

var update = flag.Bool("update", false, "add what is new to the record of names")

// Scripts, dashboards and clients rely on names: a release takes none of them away. The record
// has those of commands and flags, paths of the API, metrics, keys of the configurations, and
// values in weir status --json. Other tests compare the documents, from which most of it is
// made, with the code. -update adds what is new; what goes on purpose is to be taken out by hand.
func TestNothingIsLost(t *testing.T) {
	const record = "testdata/names"
	var all []string
	for _, c := range commands(newRoot()) {
		all = append(all, "command "+c.CommandPath())
		c.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, "command "+c.CommandPath()+" --"+f.Name) })
	}
	for _, file := range []string{"openapi.yaml", "hub.yaml"} {
		var doc struct {
			Paths      map[string]map[string]any
			Components struct {
				Schemas map[string]struct{ Properties map[string]any }
			}
		}
		if err := yaml.Unmarshal(readFile(t, "../../docs/api/"+file), &doc); err != nil {
			t.Fatal(err)
		}
		for path, methods := range doc.Paths {
			for method := range methods {
				all = append(all, fmt.Sprintf("route %s %s %s", file, strings.ToUpper(method), path))
			}
		}
		for name, s := range doc.Components.Schemas {
			for property := range s.Properties {
				all = append(all, fmt.Sprintf("json %s %s.%s", file, name, property))
			}
		}
	}
	for _, name := range regexp.MustCompile("`(weir_[a-z_]+)`").FindAllSubmatch(readFile(t, "../../docs/observability.md"), -1) {
		all = append(all, "metric "+string(name[1]))
	}
	for _, file := range []string{"weir", "hub"} {
		var schema any
		if err := json.Unmarshal(readFile(t, "../../control/config/"+file+".schema.json"), &schema); err != nil {
			t.Fatal(err)
		}
		keys(schema, "key "+file+".yaml", &all)
	}
	values(reflect.TypeFor[status](), "json status ", &all)
	slices.Sort(all)
	all = slices.Compact(all)
	recorded := strings.Split(strings.TrimSpace(string(readFile(t, record))), "\n")
	if *update {
		both := slices.Concat(all, recorded)
		slices.Sort(both)
		if err := os.WriteFile(record, []byte(strings.Join(slices.Compact(both), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(recorded) < 1000 {
		t.Errorf("%d names in the record", len(recorded))
	}
	for _, name := range recorded {
		if _, there := slices.BinarySearch(all, name); !there {
			t.Errorf("gone: %s", name)
		}
	}
}

// keys adds the keys below a schema, in the place that their parents make.
func keys(schema any, place string, all *[]string) {
	switch s := schema.(type) {
	case []any:
		for _, one := range s {
			keys(one, place, all)
		}
	case map[string]any:
		for name, below := range s {
			properties, ok := below.(map[string]any)
			switch {
			case name == "properties" && ok:
				for key, value := range properties {
					*all = append(*all, place+" "+key)
					keys(value, place+" "+key, all)
				}
			case (name == "$defs" || name == "definitions") && ok:
				for def, value := range properties {
					keys(value, strings.Fields(place)[0]+" "+strings.Fields(place)[1]+" #"+def, all)
				}
			default:
				keys(below, place, all)
			}
		}
	}
}

// values adds the paths of all values in a type's JSON.
func values(t reflect.Type, path string, all *[]string) {
	switch t.Kind() {
	case reflect.Pointer:
		values(t.Elem(), path, all)
		return
	case reflect.Slice, reflect.Map:
		values(t.Elem(), path+"[]", all)
		return
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		*all = append(*all, path)
		return
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && f.IsExported() && name != "-" {
			values(f.Type, path+"."+cmp.Or(name, f.Name), all)
		}
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text := must.Read(t, name)
	return text
}

package server

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/control/api"
	"weir/control/feed"
	"weir/tests/must"
)

const documentFile = "../../../docs/api/openapi.yaml"

// document returns the description of the daemon's API.
func document(t *testing.T) map[string]any { t.Helper(); return documentIn(t, documentFile) }

// documentIn returns a description, as decoding its JSON would.
func documentIn(t *testing.T, file string) map[string]any {
	t.Helper()
	text := must.Read(t, file)
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	return doc.(map[string]any)
}

// below walks down a document.
func below(t *testing.T, doc map[string]any, names ...string) map[string]any {
	t.Helper()
	for _, name := range names {
		next, ok := doc[name].(map[string]any)
		if !ok {
			t.Fatalf("%s: no %s in %v", documentFile, name, names)
		}
		doc = next
	}
	return doc
}

// The description has the paths and methods of the routes.
func TestDocumentedPaths(t *testing.T) {
	var want, got []string
	for _, r := range routes(daemon{source{}, nil}) {
		want = append(want, strings.ToLower(r.method)+" "+r.path)
	}
	want = append(want, "get /metrics") // which stands beside the Handler
	paths := below(t, document(t), "paths")
	for path := range paths {
		for method := range below(t, paths, path) {
			got = append(got, method+" "+path)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s has\n%q, and there are\n%q", documentFile, got, want)
	}
}

// The description has the schemas of the types.
func TestDocumentedSchemas(t *testing.T) {
	want := map[string]any{}
	for name, v := range map[string]any{
		"Error": api.Failure{}, "Status": api.Status{}, "MonitorChange": api.MonitorChange{}, "EnforceChange": api.EnforceChange{}, "FlushChange": api.FlushChange{}, "Enforced": api.Enforced{}, "Monitored": api.Monitored{}, "PoliceChange": api.PoliceChange{}, "Policed": api.Policed{}, "Confirmed": api.Confirmed{}, "Top": api.Top{}, "Floods": api.Floods{}, "Weights": api.Weights{}, "Change": api.Change{}, "Changed": api.Changed{}, "Entries": api.Entries{},
		"Lists": api.Lists{}, "ListsWorth": api.ListsWorth{}, "Collateral": api.Collateral{}, "ListCollateral": api.ListCollateral{}, "Partner": api.Partner{}, "MonthPackets": api.MonthPackets{}, "EntryAges": api.EntryAges{}, "Overlap": api.Overlap{}, "Refreshed": api.Refreshed{}, "ListVersions": api.ListVersions{}, "SourceVersions": api.SourceVersions{}, "FeedVersion": api.FeedVersion{}, "Reloaded": api.Reloaded{}, "Explanation": api.Explanation{}, "Frames": api.Frames{}, "Explanations": api.Explanations{}, "Event": api.Event{},
		"Multicast": api.Multicast{}, "MulticastChange": api.MulticastChange{}, "MulticastChanged": api.MulticastChanged{},
		"NotifyTest": api.NotifyTest{}, "NotifyTests": api.NotifyTests{},
		"Audit": api.Audit{}, "ConsoleRequest": api.ConsoleRequest{}, "ConsoleOpened": api.ConsoleOpened{}, "ConsoleEnded": api.ConsoleEnded{},
		"TraceQuestion": api.TraceQuestion{}, "Traced": api.Traced{}, "Drops": api.Drops{}, "History": api.History{},
	} {
		describe(reflect.TypeOf(v), name, want)
	}
	got := below(t, document(t), "components", "schemas")
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, slices.Sorted(maps.Keys(want))) {
		t.Errorf("%s has %q, and there are %q", documentFile, names, slices.Sorted(maps.Keys(want)))
	}
	for name := range want {
		if schema := bare(got[name]); !reflect.DeepEqual(schema, want[name]) {
			t.Errorf("%s: %s is\n%v, and should be\n%v", documentFile, name, schema, want[name])
		}
	}
}

// describe adds the bare schemas of a struct and of those in it.
func describe(t reflect.Type, name string, all map[string]any) {
	properties, required := map[string]any{}, []any{}
	for _, f := range reflect.VisibleFields(t) {
		field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field == "-" || f.Anonymous {
			continue
		}
		properties[field] = schemaOf(f.Type, all)
		if options == "" {
			required = append(required, field)
		}
	}
	slices.SortFunc(required, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	all[name] = map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		all[name].(map[string]any)["required"] = required
	}
}

func schemaOf(t reflect.Type, all map[string]any) map[string]any {
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem(), all)
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return map[string]any{"type": "string"}
	case t == reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string"} // in base64
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), all)}
	case t.Kind() == reflect.Struct:
		describe(t, t.Name(), all)
		return map[string]any{"$ref": "#/components/schemas/" + t.Name()}
	}
	return map[string]any{"type": map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number",
		reflect.Int: "integer", reflect.Int64: "integer", reflect.Uint32: "integer", reflect.Uint64: "integer",
	}[t.Kind()]}
}

// bare returns the parts of a schema that a Go type determines.
func bare(schema any) any {
	all, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	only := map[string]any{}
	for name, value := range all {
		switch name {
		case "$ref":
			only[name] = strings.TrimPrefix(value.(string), "openapi.yaml") // which is the same type
		case "type", "format":
			only[name] = value
		case "items":
			only[name] = bare(value)
		case "required":
			only[name] = slices.SortedFunc(slices.Values(value.([]any)), func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		case "properties":
			properties := map[string]any{}
			for name, property := range value.(map[string]any) {
				properties[name] = bare(property)
			}
			only[name] = properties
		}
	}
	return only
}

// traced is a question that is well-formed.
const traced = `{"packets":[{"data":"RQA=","from":"2026-01-01T00:00:00Z","to":"2026-01-01T00:00:01Z"}]}`

// Answers, with all their optional fields too, match the path's description, and so does the
// example of a change.
func TestAnswersAreAsDocumented(t *testing.T) {
	now, rate, uid, index := time.Now(), 0.5, uint32(1), 1
	s := source{
		api.Status{Mode: "exact", Interfaces: []api.InterfaceStatus{{Direction: "out", State: api.Unfiltered, XDP: "native", Problem: "x", Penalties: new(1), MaxPenalties: 2}}},
		&api.Top{
			Interfaces: []string{"eth0"}, Reasons: []api.ReasonRate{{}}, Filter: api.Filter{Mode: "exact", WeightedPredicted: &rate, FalsePositives: api.FalsePositives{Rate: &rate, Low: &rate, High: &rate, Packets: 1000}, Lists: []api.ListRate{{}}},
			Trackers: []api.Tracker{{Unit: "bytes", Flows: []api.Flow{{State: api.Blocked, Until: &now}, {State: api.RateLimited}, {}}}},
		},
		&api.Weights{FalsePositives: api.FalsePositives{Rate: &rate, Low: &rate, High: &rate, Packets: 1}, Without: &rate, Elements: []api.Weight{{}}},
		&api.Traced{Interfaces: []api.TracedInterface{{Name: "eth0", Netns: "lab", Since: &now, Packets: []api.TracedPacket{{Slices: []api.TracedSlice{{Start: now}}}}}}},
	}
	c := &control{
		lists:    []api.List{{Action: api.Allow, Direction: "both", Packets: new(uint64), Feeds: []api.FeedSource{{Outcome: api.Failed, Failure: "x", Error: "x", Read: &now, Next: &now, RolledBack: &now}}}},
		outcomes: []api.FetchOutcome{{Outcome: api.Failed, Failure: "x", Error: "x"}},
		reloaded: api.Reloaded{Changes: []string{"mode: exact → approx"}, Unfiltered: []string{"eth1 is not filtered: no native XDP"}},
		answers: []api.Answer{{
			Verdict: api.VerdictLimited, Limit: &api.Limit{Unit: "packets", Until: &now, Offered: &rate}, PenaltiesMore: 1, Spared: []string{"x"}, LastDrop: &api.LastDrop{Time: now, Reason: "blocked", List: "x", Monitor: true, Packets: 1, MonitorPackets: 1}, Reason: "blocked", Stages: []api.Stage{{Stage: "exempt", Until: &now}}, Matches: []api.Match{
				{Action: api.Block, Source: "x", Line: 1, Added: &now, Expires: &now, Reason: "x", UID: &uid, Packets: new(uint64)},
			},
			Depends: []api.Dependency{{Stage: "allow", Verdict: api.VerdictPass, Reason: "allowed", Lists: 4, Until: &now, Match: &api.Match{Action: api.Allow}}}, DependsMore: 1,
			Inside: &api.Inside{First: []api.Match{{Action: api.Block}}},
		}},
		entries:   api.Entries{Entries: []api.Entry{{Action: api.Block, Added: now, Expires: &now, Reason: "x", UID: &uid, User: "x"}, {Action: api.Allow, Added: now}}, Next: "x"},
		audit:     []api.AuditRecord{{Time: now, Change: api.Block, First: []string{"x"}, UID: &uid, User: "x", Source: "socket"}, {Source: "expiry"}},
		multicast: api.Multicast{Interfaces: []api.MulticastInterface{{Groups: []api.MulticastGroup{{Added: &now, UID: &uid}}}}},
	}
	doc := document(t)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	validate := func(at string, value []byte) {
		t.Helper()
		schema, err := compiler.Compile("openapi.json#" + at)
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
		if err == nil {
			err = schema.Validate(v)
		}
		if err != nil {
			t.Errorf("%s is not as %s says: %v", value, at, err)
		}
	}
	example := make(map[string]string)
	for _, name := range []string{"Change", "MulticastChange", "NotifyTest", "ConsoleRequest"} {
		text, err := json.Marshal(below(t, doc, "components", "requestBodies", name, "content", "application/json")["example"])
		if err != nil {
			t.Fatal(err)
		}
		validate("/components/schemas/"+name, text)
		example[name] = string(text)
	}
	validate("/components/schemas/TraceQuestion", []byte(traced))
	for _, e := range []api.Event{dropped, lost, {Time: time.Now(), Interface: "eth0", Direction: "in", Reason: "looped", Verdict: "pass", FirstTTL: 64, TTL: 60}} {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		validate("/paths/~1v1~1events/get/responses/200/content/application~1x-ndjson/schema", line)
	}
	for _, r := range routes(daemon{s, c}) {
		if r.path == api.EventsPath || r.path == api.ExportPath { // not JSON
			continue
		}
		path := strings.Replace(r.path, "{list}", "drop", 1)
		if r.path == api.ExplainPath {
			path += "?q=192.0.2.1"
		}
		body := example["Change"]
		switch {
		case r.path == api.ExplainPath:
			body = `{"frames": ["AAAA"]}`
		case r.path == api.MonitorPath:
			body = `{"on": true, "for_seconds": 600}`
		case r.path == api.PolicePath:
			body = `{"interface": "eth0", "rate": "3kpps", "for_seconds": 600}`
		case r.path == api.EnforcePath:
			body = `{"after_seconds": 86400}`
		case r.path == api.FlushPath:
			body = `{"ssh_connection": "203.0.113.9 50000 192.0.2.1 22"}`
		case r.path == api.MulticastPath:
			body = example["MulticastChange"]
		case r.path == api.ConsolePath:
			body = example["ConsoleRequest"]
		case r.path == api.NotifyTestPath:
			body = example["NotifyTest"]
		case r.method == "DELETE":
			body = change
		case r.path == api.TracePath:
			body = traced
		}
		w := httptest.NewRecorder()
		Handler(daemon{s, c}).ServeHTTP(w, httptest.NewRequest(r.method, path, strings.NewReader(body)))
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", r.path, w.Code, w.Body)
		}
		validate("/paths/"+strings.ReplaceAll(r.path, "/", "~1")+"/"+strings.ToLower(r.method)+
			"/responses/200/content/application~1json/schema", w.Body.Bytes())
	}
	failure, _ := below(t, doc, "components", "schemas", "FeedSource", "properties", "failure")["description"].(string)
	names := []string{api.Inactive}
	for f := feed.NoFailure + 1; f <= feed.Damaged; f++ {
		names = append(names, f.String())
	}
	for _, name := range names {
		if !strings.Contains(failure, name) {
			t.Errorf("the description of failures does not name %s: %s", name, failure)
		}
	}
	c.err = &api.BadRequest{Entry: &index, Text: "x", Err: os.ErrInvalid}
	w := httptest.NewRecorder()
	Handler(daemon{s, c}).ServeHTTP(w, httptest.NewRequest("POST", api.EntriesPath, strings.NewReader(change)))
	validate("/components/responses/Error/content/application~1json/schema", w.Body.Bytes())
}

// The description has each status with which a request can fail.
func TestDocumentedFailures(t *testing.T) {
	paths := below(t, document(t), "paths")
	failing := &control{err: errors.New("for a test")}
	for path := range paths {
		if path == "/metrics" {
			continue // stands beside the Handler
		}
		for method := range below(t, paths, path) {
			operation := below(t, paths, path, method)
			documented := below(t, operation, "responses")
			_, takesBody := operation["requestBody"]
			needs := func(why string, status int) {
				t.Helper()
				if _, ok := documented[strconv.Itoa(status)]; !ok {
					t.Errorf("%s: %s %s: no %d, %s", documentFile, method, path, status, why)
				}
			}
			send := func(header, body string) int {
				q := httptest.NewRequest(strings.ToUpper(method), strings.ReplaceAll(path, "{list}", "drop"), strings.NewReader(body))
				q.Header.Set("Sec-Fetch-Site", header)
				w := httptest.NewRecorder()
				Handler(daemon{source{}, failing}).ServeHTTP(w, q)
				return w.Code
			}
			if path != api.EventsPath { // answers until the client goes away
				if status := send("same-origin", "{}"); status != http.StatusOK {
					needs("as the daemon fails", status)
				}
				if status := send("same-origin", "{"); status != http.StatusOK {
					needs("for a body that is no JSON", status)
				}
			}
			if method != "get" {
				needs("for a request that a web site makes a browser send", send("cross-site", "{}"))
			} else if _, ok := documented["403"]; ok {
				t.Errorf("%s: %s %s: 403, although it changes nothing", documentFile, method, path)
			}
			if takesBody {
				needs("for a body that is too large", http.StatusRequestEntityTooLarge)
			}
			needs("for an answer that cannot be encoded", http.StatusInternalServerError)
		}
	}
}

package server

import (
	"context"
	"maps"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/control/api"
	"weir/control/fleet/wire"
)

const hubDocument = "../../../docs/api/hub.yaml"

// hubStub answers with all that there may be, or nothing at all.
type hubStub struct{ whole bool }

func (h hubStub) Fleet(context.Context) (api.HubStatus, error) {
	if !h.whole {
		return api.HubStatus{}, nil
	}
	now := time.Now()
	return api.HubStatus{
		Time: now, Catalog: &now, Problems: []string{"x"}, Reload: &api.FleetReload{Time: now, Error: "x"},
		Lists: []api.FleetList{{Action: api.Block, Direction: "src", Decision: &api.Trial{Since: &now, EnforcedAt: &now}, Feeds: []api.FeedSource{{Outcome: api.Failed, FirstBad: []string{}}}, Rollout: &api.FleetRollout{
			State: api.RolloutRunning, Waves: []api.FleetWave{{Labels: []string{}, Mode: "rehearse"}}, Top: []api.FleetAffected{{Node: "edge-1"}},
		}}},
		Nodes: []api.FleetNode{{Labels: []string{}, State: api.NodeCurrent, Seen: &now, Report: &wire.Status{Lists: []wire.ListStatus{{Rehearsal: &wire.Rehearsal{Top: []wire.Affected{{}}}}}}}},
	}, nil
}

func (hubStub) Change(context.Context, api.Change) (api.FleetChanged, error) {
	return api.FleetChanged{}, nil
}

func (hubStub) Flush(context.Context, string, api.FlushChange) (api.FleetChanged, error) {
	return api.FleetChanged{}, nil
}

func (h hubStub) Entries(context.Context, api.EntriesQuestion) (e api.Entries, err error) {
	if h.whole {
		e.Entries = []api.Entry{{Action: api.Block}}
	}
	return e, nil
}

func (hubStub) Export(context.Context, string, string) (api.Export, error) {
	return api.Export{Text: text{10, nil}}, nil
}

func (h hubStub) Versions(context.Context, string, ...string) (v api.ListVersions, err error) {
	if h.whole {
		v.Sources = []api.SourceVersions{{Versions: []api.FeedVersion{{}}}}
	}
	return v, nil
}

func (hubStub) Rollback(context.Context, string) (api.FetchOutcome, error) {
	return api.FetchOutcome{Outcome: "new"}, nil
}

func (hubStub) Refresh(context.Context, string, bool) ([]api.FetchOutcome, error) {
	return []api.FetchOutcome{{Outcome: api.Failed}}, nil
}

func (hubStub) OpenConsole(context.Context, api.ConsoleRequest) (api.ConsoleOpened, error) {
	return api.ConsoleOpened{}, nil
}

func (hubStub) EndConsole(context.Context) (api.ConsoleEnded, error) { return api.ConsoleEnded{}, nil }

func (h hubStub) Audit(int) []api.AuditRecord {
	if !h.whole {
		return nil
	}
	return []api.AuditRecord{{Error: "x"}}
}

func (h hubStub) Lost(context.Context) (l api.FleetLost, err error) {
	if h.whole {
		l.Lost = []api.LostChanges{{Added: []string{"x"}, Removed: []string{"y"}, More: 1}}
	}
	return l, nil
}

func (h hubStub) ChangeFloods(context.Context, api.FleetFloodsChange) (c api.FleetFloodsChanged, err error) {
	if h.whole {
		c.Patterns = []api.FleetPattern{{Labels: []string{"x"}, Nodes: []api.NodePattern{{State: api.PatternEnforced, Hits: &api.PatternPackets{}}}}}
	}
	return c, nil
}

func (hubStub) TakeOver(context.Context) (api.FleetTakenOver, error) {
	return api.FleetTakenOver{}, nil
}

func (hubStub) Roll(context.Context, api.FleetRoll) (api.FleetRolled, error) {
	return api.FleetRolled{}, nil
}

func (h hubStub) Enforce(context.Context, string, api.EnforceChange) (e api.FleetEnforced, err error) {
	if h.whole {
		e.Trial = &api.Trial{Since: &time.Time{}, EnforcedAt: &time.Time{}, By: "x"}
	}
	return e, nil
}

func (h hubStub) Plan(context.Context, api.FleetPlanQuestion) (p api.FleetPlan, err error) {
	if h.whole {
		p.Lists = []api.PlannedList{{Before: &api.PlannedNodes{}, After: &api.PlannedNodes{Waves: []api.PlannedWave{{Labels: []string{"x"}, Mode: "enforce"}}}, Gain: []string{"x"}}}
	}
	return p, nil
}

func (hubStub) Reload(context.Context) (api.FleetReloaded, error) { return api.FleetReloaded{}, nil }

func (h hubStub) Explain(context.Context, []string, string) (e api.FleetExplanation, err error) {
	if h.whole {
		explanation := api.NewExplanation("x")
		e.Nodes = []api.NodeExplanation{{Problem: "x"}, {Explanation: &explanation}}
	}
	return e, nil
}

func (h hubStub) Top(_ context.Context, _ []string, asked api.FleetTopQuestion) (api.FleetTop, error) {
	t := api.FleetTop{Unit: asked.Unit}
	if h.whole {
		t.Nodes, t.Flows = []api.NodeRate{{Problem: "x"}}, []api.FlowRate{{}}
	}
	return t, nil
}

func (h hubStub) Floods(context.Context, []string) (f api.FleetFloods, err error) {
	if h.whole {
		rule := api.FloodRule{Addresses: []string{"x"}}
		floods := api.Floods{Now: &api.Flood{Rules: []api.FloodRule{rule}}, Past: []api.Flood{}}
		f.Nodes, f.Rules = []api.NodeFloods{{Problem: "x"}, {Floods: &floods}}, []api.FleetFloodRule{{FloodRule: rule, Nodes: []string{"x"}}}
		f.Patterns = []api.FleetPattern{{Nodes: []api.NodePattern{{State: api.PatternAwaited}}}, {}}
	}
	return f, nil
}

func (h hubStub) Trace(context.Context, []string, api.TraceQuestion) (t api.FleetTraced, err error) {
	if h.whole {
		t.Nodes = []api.NodeTraced{{Problem: "x"}, {Traced: &api.Traced{Interfaces: []api.TracedInterface{{Packets: []api.TracedPacket{{Slices: []api.TracedSlice{{}}}}}}}}}
	}
	return t, nil
}

// The description of the hub's API has its paths, its schemas, and what it answers.
func TestHubIsAsDocumented(t *testing.T) {
	doc := documentIn(t, hubDocument)
	paths := below(t, doc, "paths")
	var want, got []string
	for _, r := range hubRoutes(hubStub{}) {
		want = append(want, strings.ToLower(r.method)+" "+r.path)
	}
	want = append(want, "get /metrics") // which stands beside the HubHandler
	for path := range paths {
		for method := range below(t, paths, path) {
			got = append(got, method+" "+path)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s has\n%q, and there are\n%q", hubDocument, got, want)
	}

	schemas := map[string]any{}
	for name, v := range map[string]any{
		"HubStatus": api.HubStatus{}, "FleetChanged": api.FleetChanged{}, "FleetExplanation": api.FleetExplanation{}, "FleetTop": api.FleetTop{}, "FleetFloods": api.FleetFloods{},
		"FleetFloodsChange": api.FleetFloodsChange{}, "FleetFloodsChanged": api.FleetFloodsChanged{},
		"FleetTraced": api.FleetTraced{}, "FleetRoll": api.FleetRoll{}, "FleetRolled": api.FleetRolled{}, "FleetTakenOver": api.FleetTakenOver{}, "FleetLost": api.FleetLost{}, "FleetPlan": api.FleetPlan{}, "FleetPlanQuestion": api.FleetPlanQuestion{}, "Term": api.Term{}, "FleetReloaded": api.FleetReloaded{}, "FleetEnforced": api.FleetEnforced{},
	} {
		describe(reflect.TypeOf(v), name, schemas)
	}
	shared := below(t, document(t), "components", "schemas")
	maps.DeleteFunc(schemas, func(name string, _ any) bool { return shared[name] != nil })
	documented := below(t, doc, "components", "schemas")
	if names := slices.Sorted(maps.Keys(documented)); !slices.Equal(names, slices.Sorted(maps.Keys(schemas))) {
		t.Errorf("%s has %q, and there are %q", hubDocument, names, slices.Sorted(maps.Keys(schemas)))
	}
	for name := range schemas {
		if schema := bare(documented[name]); !reflect.DeepEqual(schema, schemas[name]) {
			t.Errorf("%s: %s is\n%v, and should be\n%v", hubDocument, name, schema, schemas[name])
		}
	}

	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	for name, d := range map[string]any{"file:///hub.yaml": doc, "file:///openapi.yaml": document(t)} {
		if err := compiler.AddResource(name, d); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []hubStub{{true}, {false}} {
		for _, r := range hubRoutes(h) {
			path, body := r.path, ""
			switch {
			case r.path == api.FleetExplainPath:
				path += "?q=192.0.2.1&node=edge-1"
			case r.path == api.FleetTracePath:
				body = traced
			case r.path == api.ConsolePath:
				body = `{"read_only": true}`
			case r.path == api.PlanPath:
				body = `{"file": "hub.yaml", "text": "lists: {}"}`
			case r.path == api.RolloutsPath:
				body = `{"do": "pause"}`
			case r.path == api.EnforcePath:
				path, body = strings.Replace(path, "{list}", "drop", 1), `{"after_seconds": 60}`
			case r.path == api.FleetFloodsPath && r.method == "POST":
				body = `{"patterns": ["udp sport 123"], "for_seconds": 600, "trial_seconds": 2}`
			case r.method == "POST":
				body = `{"action": "block", "entries": ["192.0.2.1"], "ttl_seconds": 60}`
			case r.method == "DELETE":
				body = `{"action": "block", "entries": ["192.0.2.1"]}`
			}
			if r.path == api.FlushPath {
				body = "{}"
			}
			w := httptest.NewRecorder()
			HubHandler(h).ServeHTTP(w, httptest.NewRequest(r.method, path, strings.NewReader(body)))
			if w.Code != 200 {
				t.Fatalf("%s: %d %s", r.path, w.Code, w.Body)
			}
			if r.path == api.ExportPath {
				continue // text
			}
			schema, err := compiler.Compile("file:///hub.yaml#/paths/" + strings.ReplaceAll(r.path, "/", "~1") + "/" + strings.ToLower(r.method) + "/responses/200/content/application~1json/schema")
			if err != nil {
				t.Fatal(err)
			}
			v, err := jsonschema.UnmarshalJSON(w.Body)
			if err == nil {
				err = schema.Validate(v)
			}
			if err != nil {
				t.Errorf("%s %s is not as %s says: %v", r.method, r.path, hubDocument, err)
			}
		}
	}
}

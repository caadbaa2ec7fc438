package daemon

import (
	"reflect"
	"testing"

	"weir/control/metrics"
	"weir/loader"
)

// The entries behind a name are a label's value, not part of the name.
func TestOrigins(t *testing.T) {
	got := origins(&metrics.Snapshot{
		Lists: []metrics.List{{Name: "drop"}, {Name: "drop (manual)"}, {Name: "manual"}},
		Hits:  map[string]loader.Counter{"drop": {}, "drop (manual)": {}, "manual": {}, "gone": {}, "": {}},
	})
	want := map[string]metrics.Origin{
		"drop": {List: "drop", Entries: "sources"}, "drop (manual)": {List: "drop", Entries: "manual"},
		"manual": {List: "manual", Entries: "manual"}, "gone": {List: "gone", Entries: "sources"}, "": {Entries: "sources"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

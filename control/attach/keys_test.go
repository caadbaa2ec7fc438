package attach

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// statusKeys are the paths of all values in weir status --json.
const statusKeys = `
.allow_structures[].bytes
.allow_structures[].name
.bits_per_entry
.block_structures[].bytes
.block_structures[].name
.by_list[].bytes
.by_list[].list
.by_list[].packets
.collateral.sources
.counted_reasons[]
.direction
.drop_malformed
.drop_not_ip
.dropped.bytes
.dropped.packets
.entries
.failsafe_icmp[]
.failsafe_ports[]
.failsafe_prefixes[]
.false_positive_rate
.first_seen.events
.first_seen.filter
.first_seen.key
.first_seen.lines
.first_seen.window
.general_path[]
.inner
.interface
.kernel_bytes
.lists[].allow
.lists[].bad_lines
.lists[].before.Bytes
.lists[].before.Packets
.lists[].direction
.lists[].entries
.lists[].name
.lists[].source
.loaded
.loop.confirm
.loop.domain
.loop.drop
.loop.edges[]
.loop.k
.loop.node
.loop.size
.loop_packets[]
.mode
.monitor
.netns
.new_flows.by_importance[].events
.new_flows.by_importance[].flows
.new_flows.by_importance[].importance
.new_flows.by_importance[].suppressed
.new_flows.flows
.new_flows.forgotten_share[]
.new_flows.full_windows
.new_flows.missed_share
.new_flows.window
.new_flows.window_flows
.not_ip[].bytes
.not_ip[].ethertype
.not_ip[].name
.not_ip[].packets
.order[].id
.order[].name
.order[].tag
.order[].weir
.pid
.police.controller
.police.limit
.police.packets
.policed.boxed_share
.policed.fair_rate
.policed.guarded
.policed.outcomes[].bytes
.policed.outcomes[].packets
.program_id
.reasons[].bytes
.reasons[].packets
.replies.connections
.running
.service
.severed
.shapes[]
.since
.state_dir
.total.bytes
.total.packets
.tunnels[].headers
.tunnels[].listed
.version
.xdp
`

// Scripts read weir status --json: a key goes, or changes its name, only if that is meant.
func TestStatusKeys(t *testing.T) {
	got := strings.Join(keys(reflect.TypeFor[Status](), ""), "\n")
	if got != strings.TrimSpace(statusKeys) {
		t.Errorf("the keys are not those above:\n%s", got)
	}
}

// keys returns the paths of all values in a type's JSON.
func keys(t reflect.Type, path string) (all []string) {
	switch t.Kind() {
	case reflect.Pointer:
		return keys(t.Elem(), path)
	case reflect.Slice, reflect.Map:
		return keys(t.Elem(), path+"[]")
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).NumMethod() > 0 && t.PkgPath() == "time" {
		return []string{path}
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && f.IsExported() && name != "-" {
			if name == "" {
				name = f.Name
			}
			all = append(all, keys(f.Type, path+"."+name)...)
		}
	}
	slices.Sort(all)
	return all
}

// Package rules has the rule set of tests that attribute packets to lists.
package rules

import (
	"log/slog"
	"testing"

	"weir/control/config"
	"weir/control/journal"
	"weir/control/ruleset"
)

// Read returns two block lists that overlap, a and b, and an allow list, friends.
func Read(t testing.TB) *ruleset.Ruleset {
	t.Helper()
	c, err := config.Parse("weir.yaml", []byte(`
interfaces: [lo]
state_dir: ""
lists:
  a: {entries: [192.0.2.0/24, 198.51.100.1]}
  b: {entries: [192.0.2.9]}
  friends: {action: allow, entries: [192.0.2.77]}
`))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open("", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ruleset.Read(t.Context(), c, ruleset.Options{Log: log, Journal: j, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

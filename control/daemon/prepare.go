package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"weir/control/attach"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Prepare reads what a configuration filters by: files and directories, what was
// saved of other sources, and the journal. It takes no lock, asks no server and
// changes nothing. [Start] refuses what Prepare or [ruleset.Ruleset.Build] refuse, with
// the same error, but for databases of geo, without which it starts.
func Prepare(ctx context.Context, c *config.Config, log *slog.Logger, progress *feed.Progress) (*ruleset.Ruleset, error) {
	by := clock.Open(clock.This(), string(c.StateDir), log)
	j, err := readJournal(c, by, log)
	if err != nil {
		return nil, err
	}
	n, err := openNode(c, by, "", true, log)
	if err != nil {
		return nil, err
	}
	shared := new(fleet)
	shared.node.Store(n)
	p, err := ruleset.Read(ctx, c, ruleset.Options{Log: log, Journal: j, ReadOnly: true, Progress: progress, Shared: shared, Trials: lists.LoadTrials(statePath(c, lists.TrialFile), by, log)})
	if err == nil && p.Unopened != nil {
		return nil, p.Unopened
	}
	return p, err
}

// evadable reports whether packets can hide from the block lists what these
// match: the headers before the ports of an IPv6 packet may be more than are
// followed, or end early.
func evadable(e *engine.Generation) bool {
	return !e.Policy.DropMalformed &&
		slices.ContainsFunc(e.Block.V6Flow, func(s membership.GatedShape) bool { return s.Ports() })
}

// targetsOf returns the interfaces of a configuration.
func targetsOf(c *config.Config) []attach.Target {
	var all []attach.Target
	for _, i := range c.Interfaces {
		all = append(all, attach.Target{
			Target: netif.Target{Netns: i.Netns, Iface: i.Name}, XDP: i.Place(), Required: i.Required,
		})
		if c.Sends(i) {
			all = append(all, attach.Target{
				Target: netif.Target{Netns: i.Netns, Iface: i.Name, Out: true}, XDP: hooks.TC, Required: i.Required && i.Egress,
			})
		}
	}
	return all
}

func journalPath(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), "entries")
}

// readJournal returns the entries of a configuration's journal, if there is one.
func readJournal(c *config.Config, by *clock.Clock, log *slog.Logger) (*journal.Journal, error) {
	if c.StateDir != "" {
		j, err := journal.Read(journalPath(c), by, log)
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("manual entries: run it as root, or as the service's user: %w", err)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return j, err
		}
	}
	return journal.Open("", by, log)
}

package ruleset

import (
	"cmp"
	"context"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/ordered"
)

// Pages reads the entries of lists. It is safe for concurrent use.
type Pages struct{ host Host }

// NewPages returns what reads the lists of a host.
func NewPages(host Host) *Pages { return &Pages{host} }

// Entries implements [server.EntriesReader]. The loop only lends its sets, which are
// immutable: however many entries there are, filtering goes on.
func (r *Pages) Entries(ctx context.Context, asked api.EntriesQuestion) (api.Entries, error) {
	var all []lists.ManualEntries
	if err := r.host.Lend(ctx, func(a Active) error {
		if asked.List != "" {
			if _, err := a.ByName.Find(asked.List); err != nil {
				return err
			}
		}
		for _, l := range a.Lists {
			if asked.List == "" || asked.List == l.Name {
				s := lists.ManualEntries{Journal: a.Journal, Name: l.Name, Action: string(l.Action), Contents: a.Contents(l.ManualNumber)}
				if l.FromFeed != nil && l.Format.Kind == feed.CrowdSec {
					s.Decisions, s.Active, s.Rule = l.FromFeed, a.Contents(l.SourceNumber), l.EngineList()
				}
				all = append(all, s)
			}
		}
		return nil
	}); err != nil {
		return api.Entries{}, err
	}
	return lists.Page(ctx, all, asked)
}

// Export implements [server.EntriesReader].
func (r *Pages) Export(ctx context.Context, name, format string) (api.Export, error) {
	var of engine.List
	var sets []*list.Set
	if err := r.host.Lend(ctx, func(a Active) error {
		l, err := a.ByName.Find(name)
		if err != nil {
			return err
		}
		of = l.EngineList()
		if sets = []*list.Set{a.Contents(l.ManualNumber)}; l.SourceNumber != 0 {
			sets = append(sets, a.Contents(l.SourceNumber))
		}
		if l.DerivedNumber != 0 {
			sets = append(sets, a.Contents(l.DerivedNumber))
		}
		return nil
	}); err != nil {
		return api.Export{}, err
	}
	ordered.By(sets, func(a, b *list.Set) int { return cmp.Compare(b.Len(), a.Len()) }) // a small addition to a large set is cheap
	all := list.Union(sets...)
	src, dst := of.Direction.Sides()
	return lists.Export(all, name, format, src, dst)
}

package hub

import (
	"context"

	"weir/control/api"
	"weir/control/config"
	"weir/control/list"
	"weir/control/lists"
)

// Entries implements [server.EntriesReader]: the manual entries of the hub's lists.
func (h *Hub) Entries(ctx context.Context, asked api.EntriesQuestion) (api.Entries, error) {
	var all []lists.ManualEntries
	if err := h.Do(ctx, func() error {
		if asked.List != "" {
			if _, err := h.lists.byName.Find(asked.List); err != nil {
				return err
			}
		}
		for _, l := range h.lists.all {
			if asked.List == "" || asked.List == l.Name {
				all = append(all, lists.ManualEntries{Journal: h.journal, Name: l.Name, Action: string(l.Action)})
			}
		}
		return nil
	}); err != nil {
		return api.Entries{}, err
	}
	for i := range all { // the journal is read beside the loop: there may be many
		l := &all[i]
		l.Contents = list.SetOf(lists.ManualKeys(h.journal, l.Name, l.Action == string(config.Allow))...)
	}
	return lists.Page(ctx, all, asked)
}

// Export implements [server.EntriesReader]: all entries of a list's last version.
func (h *Hub) Export(ctx context.Context, name, format string) (api.Export, error) {
	var of *managed
	var contents *list.Set
	if err := h.Do(ctx, func() (err error) {
		if of, err = h.lists.byName.Find(name); err == nil {
			contents = of.history.Contents()
		}
		return err
	}); err != nil {
		return api.Export{}, err
	}
	src, dst := of.Direction.Sides()
	return lists.Export(contents, name, format, src, dst)
}

// Flush removes all manual entries of a list on all nodes, as Change does.
func (h *Hub) Flush(ctx context.Context, name string, _ api.FlushChange) (changed api.FleetChanged, err error) {
	c := api.Change{List: name, Remove: true, Await: true, UID: api.NoUID}
	if by, ok := api.CallerOf(ctx); ok {
		c.UID, c.Client = by.UID, by.Client
	}
	if err := h.Do(ctx, func() error {
		of, err := h.lists.byName.Find(name)
		if err == nil {
			c.Action = string(of.Action)
		}
		return err
	}); err != nil {
		return changed, err
	}
	for _, k := range lists.ManualKeys(h.journal, name, c.Action == api.Allow) {
		c.Entries = append(c.Entries, k.String())
	}
	if len(c.Entries) == 0 {
		return api.FleetChanged{Changed: api.Changed{List: name}, Published: true}, nil
	}
	return h.Change(ctx, c)
}

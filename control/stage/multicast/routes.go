package multicast

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"weir/control/api"
	"weir/control/engine"
	"weir/filter/multicast"
)

// errOff says that the daemon forwards no multicast.
var errOff = api.Fail(http.StatusNotFound,
	errors.New("this daemon forwards no multicast: name the interfaces that want it under multicast in its configuration, then `weir reload`"))

// Forwarder forwards multicast. It is safe for concurrent use.
type Forwarder interface {
	Multicast(context.Context) (api.Multicast, error)
	// ChangeMulticast changes what an interface wants. When it returns without an error, that is
	// durable; with one, nothing has changed.
	ChangeMulticast(context.Context, api.MulticastChange) (api.MulticastChanged, error)
}

// Routes returns the routes of a forwarder.
func Routes(f Forwarder) []api.Route {
	change := func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked api.MulticastChange
		if err := api.ReadBody(w, q, api.MaxBody, &asked); err != nil {
			return nil, err
		}
		by, ok := api.CallerOf(q.Context())
		if !ok {
			by.UID = api.NoUID
		}
		asked.Remove, asked.UID = q.Method == http.MethodDelete, by.UID
		if err := check(&asked); err != nil {
			return nil, err
		}
		return f.ChangeMulticast(q.Context(), asked)
	}
	return []api.Route{
		api.NewRoute(http.MethodGet, api.MulticastPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			m, err := f.Multicast(q.Context())
			m.Interfaces = slices.Clone(api.NonNil(m.Interfaces)) // the forwarder's slice must not change
			for i := range m.Interfaces {
				m.Interfaces[i].Groups = api.NonNil(m.Interfaces[i].Groups)
			}
			return m, err
		}),
		api.NewRoute(http.MethodPost, api.MulticastPath, change),
		api.NewRoute(http.MethodDelete, api.MulticastPath, change),
	}
}

// check returns what is wrong with a change, as far as that does not depend on the interfaces.
func check(c *api.MulticastChange) error {
	if c.Interface == "" {
		return &api.BadRequest{Err: errors.New("no interface")}
	}
	if len(c.Groups) == 0 {
		return &api.BadRequest{Err: errors.New("no groups")}
	}
	for i, text := range c.Groups {
		group, err := netip.ParseAddr(text)
		if err == nil {
			err = multicast.Check(group)
		}
		if err != nil {
			return &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
	}
	return nil
}

// hosted are groups whose changes a host carries out, and records.
type hosted struct {
	groups *Groups
	host   Host
}

// Routes returns the routes of the groups, which a host owns.
func (s *Groups) Routes(h Host) []api.Route { return Routes(hosted{s, h}) }

// Multicast implements [Forwarder].
func (h hosted) Multicast(ctx context.Context) (m api.Multicast, err error) {
	bad := h.host.Do(ctx, func(g *engine.Generation) (err error) { m, err = h.groups.state(g); return err })
	return m, bad
}

// ChangeMulticast implements [Forwarder].
func (h hosted) ChangeMulticast(ctx context.Context, c api.MulticastChange) (changed api.MulticastChanged, err error) {
	changed.Interface = c.Interface
	err = h.host.DoAlone(ctx, func(g *engine.Generation) error { return h.groups.change(g, c, &changed) })
	r := api.AuditRecord{
		Change: "multicast add", Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: c.Groups,
	}
	if c.Remove {
		r.Change = "multicast remove"
	}
	h.host.Attempt(ctx, r, err)
	return changed, err
}

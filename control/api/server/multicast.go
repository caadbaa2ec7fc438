package server

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"weir/control/api"
	"weir/control/api/internal/contract"
	"weir/filter/multicast"
)

// checkMulticast returns what is wrong with a change, as far as that does not depend on the
// interfaces.
func checkMulticast(c *api.MulticastChange) error {
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

// multicastRoutes returns the routes of multicast forwarding.
func multicastRoutes(c Multicaster) []route {
	change := func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked api.MulticastChange
		if err := readBody(w, q, contract.MaxBody, &asked); err != nil {
			return nil, err
		}
		asked.Remove = q.Method == http.MethodDelete
		asked.UID, asked.Client = caller(q)
		if err := checkMulticast(&asked); err != nil {
			return nil, err
		}
		return c.ChangeMulticast(q.Context(), asked)
	}
	return []route{
		{http.MethodGet, contract.MulticastPath, func(http.ResponseWriter, *http.Request) (any, error) {
			m, err := c.Multicast()
			m.Interfaces = slices.Clone(list(m.Interfaces)) // the daemon's slice must not change
			for i := range m.Interfaces {
				m.Interfaces[i].Groups = list(m.Interfaces[i].Groups)
			}
			return m, err
		}},
		{http.MethodPost, contract.MulticastPath, change},
		{http.MethodDelete, contract.MulticastPath, change},
	}
}

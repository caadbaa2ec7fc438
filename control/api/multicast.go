package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"weir/filter/multicast"
)

const multicastPath = "/v1/multicast"

// Multicast is the state of multicast forwarding: GET /v1/multicast. Packets and
// bytes are counted from the daemon's start.
type Multicast struct {
	Groups    int     `json:"groups"` // wanted by at least one interface
	MaxGroups int     `json:"max_groups"`
	Planned   float64 `json:"planned_false_positive_rate"` // of a filter with MaxGroups groups

	Copied      uint64 `json:"copied_packets"` // to the interfaces, before their filters
	CopiedBytes uint64 `json:"copied_bytes"`
	Left        uint64 `json:"left_packets"` // to the network stack, because no interface wants their group
	LeftBytes   uint64 `json:"left_bytes"`

	Interfaces []MulticastInterface `json:"interfaces"`
}

// MulticastInterface is an interface to which packets are copied.
type MulticastInterface struct {
	Name       string `json:"name"`
	Configured bool   `json:"configured"` // false: it gets no packets, and its groups were added before it was removed
	Present    bool   `json:"present"`

	// FalsePositiveRate is the share of the unwanted groups, 0 … 1, that the
	// interface's filter matches by mistake, computed from the bits that are set.
	FalsePositiveRate float64 `json:"false_positive_rate"`

	Sent         uint64 `json:"sent_packets"`
	SentBytes    uint64 `json:"sent_bytes"`
	Dropped      uint64 `json:"dropped_packets"` // copies to groups that its filter does not contain
	DroppedBytes uint64 `json:"dropped_bytes"`

	Groups []MulticastGroup `json:"groups"`
}

// MulticastGroup is a group that an interface wants.
type MulticastGroup struct {
	Group      string     `json:"group"`
	Configured bool       `json:"configured"`      // in the configuration
	Added      *time.Time `json:"added,omitempty"` // manually
	UID        *uint32    `json:"uid,omitempty"`   // of the user who added it
}

// MulticastChange is a request to add groups to those that an interface wants, or to
// remove them: POST or DELETE /v1/multicast.
type MulticastChange struct {
	Remove bool `json:"-"` // DELETE

	Interface string   `json:"interface"`
	Groups    []string `json:"groups"`

	UID    uint32 `json:"-"` // as in Change
	Client string `json:"-"`
}

// MulticastChanged is the result of a change, as numbers of groups.
type MulticastChanged struct {
	Interface string `json:"interface"`
	Added     int    `json:"added"`
	Removed   int    `json:"removed"`
	Unchanged int    `json:"unchanged"` // added but already wanted, or removed but not wanted
}

// ErrNoMulticast says that the daemon forwards no multicast.
var ErrNoMulticast = errors.New("this daemon forwards no multicast: name the interfaces that want it under multicast in its configuration, then `weir reload`")

// check returns what is wrong with a change, as far as that does not depend on the
// interfaces.
func (c *MulticastChange) check() error {
	if c.Interface == "" {
		return &BadRequest{Err: errors.New("no interface")}
	}
	if len(c.Groups) == 0 {
		return &BadRequest{Err: errors.New("no groups")}
	}
	for i, text := range c.Groups {
		group, err := netip.ParseAddr(text)
		if err == nil {
			err = multicast.Check(group)
		}
		if err != nil {
			return &BadRequest{Entry: &i, Text: text, Err: err}
		}
	}
	return nil
}

// multicastRoutes returns the routes of multicast forwarding.
func multicastRoutes(c Daemon) []route {
	change := func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked MulticastChange
		if err := readBody(w, q, maxBody, &asked); err != nil {
			return nil, err
		}
		asked.Remove = q.Method == http.MethodDelete
		asked.UID, asked.Client = caller(q)
		if err := asked.check(); err != nil {
			return nil, err
		}
		return c.ChangeMulticast(q.Context(), asked)
	}
	return []route{
		{http.MethodGet, multicastPath, func(http.ResponseWriter, *http.Request) (any, error) {
			m, err := c.Multicast()
			m.Interfaces = slices.Clone(list(m.Interfaces)) // the daemon's slice must not change
			for i := range m.Interfaces {
				m.Interfaces[i].Groups = list(m.Interfaces[i].Groups)
			}
			return m, err
		}},
		{http.MethodPost, multicastPath, change},
		{http.MethodDelete, multicastPath, change},
	}
}

// Multicast returns the state of multicast forwarding.
func (c *Client) Multicast(ctx context.Context) (*Multicast, error) {
	return get[Multicast](ctx, c, multicastPath)
}

// ChangeMulticast adds groups to those that an interface wants, or removes them. It
// fails with a [*BadRequest] if the daemon does not understand or refuses the change.
func (c *Client) ChangeMulticast(ctx context.Context, change MulticastChange) (*MulticastChanged, error) {
	method := http.MethodPost
	if change.Remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return ask[MulticastChanged](ctx, c, method, multicastPath, body)
}

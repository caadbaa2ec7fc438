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

// Multicast is what is forwarded to groups: GET /v1/multicast. Packets and bytes
// are counted since weir began.
type Multicast struct {
	Groups    int     `json:"groups"` // that any interface wants
	MaxGroups int     `json:"max_groups"`
	Planned   float64 `json:"planned_false_positive_rate"` // of a filter with so many groups

	Copied      uint64 `json:"copied_packets"` // to the interfaces, whose filters have yet to judge
	CopiedBytes uint64 `json:"copied_bytes"`
	Left        uint64 `json:"left_packets"` // to the network stack, since no interface wants the group
	LeftBytes   uint64 `json:"left_bytes"`

	Interfaces []MulticastInterface `json:"interfaces"`
}

// MulticastInterface is an interface to which packets are copied.
type MulticastInterface struct {
	Name       string `json:"name"`
	Configured bool   `json:"configured"` // false: it has groups that were added before it was taken out, and gets none
	Present    bool   `json:"present"`

	// FalsePositiveRate is the share of the groups that the interface does not want
	// which its filter lists all the same, 0 … 1, by the bits that are set now.
	FalsePositiveRate float64 `json:"false_positive_rate"`

	Sent         uint64 `json:"sent_packets"`
	SentBytes    uint64 `json:"sent_bytes"`
	Dropped      uint64 `json:"dropped_packets"` // copies of groups that its filter does not list
	DroppedBytes uint64 `json:"dropped_bytes"`

	Groups []MulticastGroup `json:"groups"`
}

// MulticastGroup is a group that an interface wants.
type MulticastGroup struct {
	Group      string     `json:"group"`
	Configured bool       `json:"configured"`      // the configuration has it
	Added      *time.Time `json:"added,omitempty"` // by command
	UID        *uint32    `json:"uid,omitempty"`   // of the user who added it
}

// MulticastChange asks for groups to be added to an interface, or removed: POST or
// DELETE /v1/multicast.
type MulticastChange struct {
	Remove bool `json:"-"` // DELETE

	Interface string   `json:"interface"`
	Groups    []string `json:"groups"`

	UID    uint32 `json:"-"` // as in Change
	Client string `json:"-"`
}

// MulticastChanged says what a change came to, in groups.
type MulticastChanged struct {
	Interface string `json:"interface"`
	Added     int    `json:"added"`
	Removed   int    `json:"removed"`
	Unchanged int    `json:"unchanged"` // there already, or not there to be removed
}

// ErrNoMulticast says that a weir forwards none.
var ErrNoMulticast = errors.New("this weir forwards no multicast: name the interfaces that want it under multicast in its configuration, then `weir reload`")

// check says what is wrong with a change, as far as it does not take the
// interfaces to tell.
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

// multicastRoutes are those of the forwarding of multicast.
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
			m.Interfaces = slices.Clone(list(m.Interfaces)) // the daemon's own must not change
			for i := range m.Interfaces {
				m.Interfaces[i].Groups = list(m.Interfaces[i].Groups)
			}
			return m, err
		}},
		{http.MethodPost, multicastPath, change},
		{http.MethodDelete, multicastPath, change},
	}
}

// Multicast asks what is forwarded to groups.
func (c *Client) Multicast(ctx context.Context) (*Multicast, error) {
	return get[Multicast](ctx, c, multicastPath)
}

// ChangeMulticast asks for groups to be added to an interface, or removed. It fails
// with a [*BadRequest] for what weir does not understand or refuses.
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

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

const notifyTestPath = "/v1/notify/test"

// NotifyTest asks for a test event: POST /v1/notify/test.
type NotifyTest struct {
	Target string `json:"target"` // name of the only receiver; "": all
}

// NotifyTests are the results of a test event, by receiver.
type NotifyTests struct {
	Targets []NotifyTested `json:"targets"`
}

// NotifyTested is the result of a test event for one receiver.
type NotifyTested struct {
	Target    string  `json:"target"` // its name
	To        string  `json:"to"`     // its URL without what may be secret, or its command
	Delivered bool    `json:"delivered"`
	Answer    string  `json:"answer,omitempty"` // the status and the beginning of the text that it sent, or printed
	Error     string  `json:"error,omitempty"`  // why the event was not delivered
	Seconds   float64 `json:"seconds"`          // until the answer
	Waiting   int     `json:"waiting"`          // other events that wait for the receiver
}

// ErrNoTarget is wrapped by errors for the name of a receiver that does not exist.
var ErrNoTarget = errors.New("no such target of notifications")

func notifyRoutes(c Daemon) []route {
	return []route{{http.MethodPost, notifyTestPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked NotifyTest
		if err := readBody(w, q, maxSmallBody, &asked); err != nil {
			return nil, err
		}
		tested, err := c.TestNotify(q.Context(), asked.Target)
		return NotifyTests{list(tested)}, err
	}}}
}

// maxSmallBody bounds requests that have a few fields, in bytes.
const maxSmallBody = 1 << 20

// TestNotify sends a test event to a receiver of notifications, "" for all, and
// returns what they answered.
func (c *Client) TestNotify(ctx context.Context, target string) ([]NotifyTested, error) {
	body, err := json.Marshal(NotifyTest{target})
	if err != nil {
		return nil, err
	}
	n, err := ask[NotifyTests](ctx, c, http.MethodPost, notifyTestPath, body)
	if err != nil {
		return nil, err
	}
	return n.Targets, nil
}

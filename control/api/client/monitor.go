package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"weir/control/api"
)

// SetMonitor switches monitor mode on for a time, 0 for ever, whatever the
// configuration says, or ends that.
func (c *Client) SetMonitor(ctx context.Context, on bool, during time.Duration) (*api.Monitored, error) {
	body, err := json.Marshal(api.MonitorChange{On: &on, For: during.Seconds()})
	if err != nil {
		return nil, err
	}
	return Ask[api.Monitored](ctx, c, http.MethodPost, api.MonitorPath, body)
}

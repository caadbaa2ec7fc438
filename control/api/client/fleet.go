package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"weir/control/api"
)

// Fleet asks a hub for the state of its fleet.
func (c *Client) Fleet(ctx context.Context) (*api.HubStatus, error) {
	return Get[api.HubStatus](ctx, c, api.FleetPath)
}

// ReloadFleet makes a hub read its configuration again.
func (c *Client) ReloadFleet(ctx context.Context) (*api.FleetReloaded, error) {
	return Ask[api.FleetReloaded](ctx, c, http.MethodPost, api.ReloadPath, nil)
}

// PlanFleet asks a hub what a reload would change.
func (c *Client) PlanFleet(ctx context.Context, q api.FleetPlanQuestion) (*api.FleetPlan, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return Ask[api.FleetPlan](ctx, c, http.MethodPost, api.PlanPath, body)
}

// FleetLost asks a hub for what is known to be lost of its history.
func (c *Client) FleetLost(ctx context.Context) (*api.FleetLost, error) {
	return Get[api.FleetLost](ctx, c, api.LostPath)
}

// TakeOver makes a hub rule the nodes, and not another one with the same keys.
func (c *Client) TakeOver(ctx context.Context) (*api.FleetTakenOver, error) {
	return Ask[api.FleetTakenOver](ctx, c, http.MethodPost, api.TakeOverPath, nil)
}

// Backup copies the keys and the state of a hub, in the form of weir-hub backup, for a standby.
func (c *Client) Backup(ctx context.Context, to io.Writer) error {
	r, err := c.send(ctx, http.MethodGet, api.BackupPath, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(to, r.Body); err != nil {
		return fmt.Errorf("copy from the hub at %s: %w", c.path, err)
	}
	return nil
}

// ChangeFleet is Change for a hub.
func (c *Client) ChangeFleet(ctx context.Context, change api.Change) (*api.FleetChanged, error) {
	return askChange[api.FleetChanged](ctx, c, change)
}

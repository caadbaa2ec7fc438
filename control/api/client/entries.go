package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"weir/control/api"
)

// queryOfEntries returns the parameters of a question.
func queryOfEntries(e api.EntriesQuestion) string {
	q := url.Values{}
	if e.List != "" {
		q.Set(api.ListParameter, e.List)
	}
	if e.Expiring != 0 {
		q.Set(api.ExpiringParameter, strconv.FormatFloat(e.Expiring.Seconds(), 'g', -1, 64))
	}
	if e.Manual {
		q.Set(api.ManualParameter, "1")
	}
	if e.After != "" {
		q.Set(api.AfterParameter, e.After)
	}
	if e.Limit != 0 {
		q.Set(api.LimitParameter, strconv.Itoa(e.Limit))
	}
	return q.Encode()
}

// Entries asks for a page of manual entries.
func (c *Client) Entries(ctx context.Context, asked api.EntriesQuestion) (*api.Entries, error) {
	path := api.EntriesPath
	if query := queryOfEntries(asked); query != "" {
		path += "?" + query
	}
	return Ask[api.Entries](ctx, c, http.MethodGet, path, nil)
}

// Flush asks for all manual entries of a list to be removed. It fails with a [*api.BadRequest]
// if that must not be.
func (c *Client) Flush(ctx context.Context, list string, change api.FlushChange) (*api.Changed, error) {
	return flush[api.Changed](ctx, c, list, change)
}

// FlushFleet asks a hub for all manual entries of a list to be removed on all nodes.
func (c *Client) FlushFleet(ctx context.Context, list string) (*api.FleetChanged, error) {
	return flush[api.FleetChanged](ctx, c, list, api.FlushChange{})
}

func flush[T any](ctx context.Context, c *Client, list string, change api.FlushChange) (*T, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return Ask[T](ctx, c, http.MethodPost, strings.Replace(api.FlushPath, "{list}", url.PathEscape(list), 1), body)
}

// Export writes all active entries of a list in a format to w, and returns how many
// it left out since the format cannot express them.
func (c *Client) Export(ctx context.Context, list, format string, w io.Writer) (leftOut int, err error) {
	path := strings.Replace(api.ExportPath, "{list}", url.PathEscape(list), 1) + "?" + url.Values{api.FormatParameter: {format}}.Encode()
	r, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	if leftOut, err = strconv.Atoi(r.Header.Get(api.LeftOutHeader)); err != nil {
		return 0, errors.New("the answer does not say whether it is complete")
	}
	if _, err := io.Copy(w, r.Body); err != nil {
		return 0, fmt.Errorf("the export is incomplete: %w", err)
	}
	return leftOut, nil
}

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// Client asks a running weir.
type Client struct {
	path string
	http http.Client
}

// patience is how long a client waits for an answer.
const patience = 5 * time.Second

// Dial gives a client for the weir that listens on a socket. It connects when
// it asks, and again when it must: it outlives a restart of weir.
func Dial(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path, http.Client{Timeout: patience, Transport: &http.Transport{DialContext: dial}}}
}

// Top asks what goes through.
func (c *Client) Top(ctx context.Context) (*Top, error) { return get[Top](ctx, c, topPath) }

// Weights asks what was learned.
func (c *Client) Weights(ctx context.Context) (*Weights, error) {
	return get[Weights](ctx, c, weightsPath)
}

func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir"+path, nil)
	if err != nil {
		return nil, err
	}
	r, err := c.http.Do(q)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		var f failure
		if json.NewDecoder(r.Body).Decode(&f) != nil || f.Error == "" {
			return nil, fmt.Errorf("what listens at %s is no weir: it says %s to %s", c.path, r.Status, path)
		}
		return nil, errors.New(f.Error)
	}
	t := new(T)
	if err := json.NewDecoder(r.Body).Decode(t); err != nil {
		return nil, fmt.Errorf("answer of the weir at %s to %s: %w", c.path, path, err)
	}
	return t, nil
}

// unreachable says what is wrong where there was no answer, and what to do.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	info, missing := os.Stat(c.path)
	var late net.Error
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: you need to be root%s", c.path, orGroup(info))
	case errors.Is(missing, fs.ErrNotExist):
		return fmt.Errorf("no weir runs here: %s does not exist; start `weir run`", c.path)
	case missing == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket: name the one that weir listens on", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no weir runs here: nobody listens at %s any more; start `weir run`", c.path)
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("the weir at %s does not answer within %v", c.path, patience)
	}
	return fmt.Errorf("ask the weir at %s: %w", c.path, err)
}

// orGroup names the group that may use a socket beside root; nil is one that
// cannot be looked at.
func orGroup(socket fs.FileInfo) string {
	if socket == nil {
		return ""
	}
	stat, ok := socket.Sys().(*syscall.Stat_t)
	if !ok || stat.Gid == 0 {
		return ""
	}
	id := strconv.Itoa(int(stat.Gid))
	if g, err := user.LookupGroupId(id); err == nil {
		return " or in group " + g.Name
	}
	return " or in group " + id
}

package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Client asks a running weir, and tells it what to do.
type Client struct {
	path string // of the socket, or the URL
	base string // of what is asked
	http http.Client
}

// patience is how long a client waits for what weir need only tell.
const patience = 5 * time.Second

// ErrNotRunning says that no weir listens where it should.
var ErrNotRunning = errors.New("no weir runs here")

// Dial gives a client for the weir that listens on a socket. It connects when
// it asks, and again when it must: it outlives a restart of weir.
func Dial(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path, "http://weir", http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// DialTLS gives a client for the weir that is served at a URL, https://HOST:PORT, to
// those who have a certificate. The files are PEM; ca are the authorities for weir's
// own. It connects when it asks.
func DialTLS(address, cert, key, ca string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q: want https://HOST:PORT, where weir's api.listen is", address)
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	authorities, err := readAuthorities(ca)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: authorities}
	return &Client{address, "https://" + u.Host, http.Client{Transport: &http.Transport{TLSClientConfig: c}}}, nil
}

// Top asks what goes through.
func (c *Client) Top(ctx context.Context) (*Top, error) { return get[Top](ctx, c, topPath) }

// Weights asks what was learned.
func (c *Client) Weights(ctx context.Context) (*Weights, error) {
	return get[Weights](ctx, c, weightsPath)
}

// Lists asks for the lists.
func (c *Client) Lists(ctx context.Context) (*Lists, error) { return get[Lists](ctx, c, listsPath) }

// Change asks for entries to be added or removed. It fails with a [*BadRequest]
// for what weir does not understand or refuses. This and what follows takes
// as long as weir takes for it.
func (c *Client) Change(ctx context.Context, change Change) (*Changed, error) {
	method := http.MethodPost
	if change.Remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(change)
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxBody: // whose refusal may not arrive while it is being sent
		return nil, errTooLarge
	}
	return ask[Changed](ctx, c, method, entriesPath, body)
}

// Refresh asks for the sources of a list to be read now, "" for those of all.
func (c *Client) Refresh(ctx context.Context, list string) (*Refreshed, error) {
	path := refreshPath
	if list != "" {
		path = strings.Replace(refreshListPath, "{list}", url.PathEscape(list), 1)
	}
	return ask[Refreshed](ctx, c, http.MethodPost, path, nil)
}

// Reload asks for the configuration to be read again.
func (c *Client) Reload(ctx context.Context) (*Reloaded, error) {
	return ask[Reloaded](ctx, c, http.MethodPost, reloadPath, nil)
}

// get asks for what is told at once.
func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t, err := ask[T](soon, c, http.MethodGet, path, nil)
	if err != nil && ctx.Err() == nil && soon.Err() != nil {
		return nil, fmt.Errorf("the weir at %s does not answer within %v", c.path, patience)
	}
	return t, err
}

// ask asks, and waits for the answer.
func ask[T any](ctx context.Context, c *Client, method, path string, body []byte) (*T, error) {
	r, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	t := new(T)
	if err := json.NewDecoder(r.Body).Decode(t); err != nil {
		return nil, fmt.Errorf("answer of the weir at %s to %s: %w", c.path, path, err)
	}
	return t, nil
}

// send asks, and waits until the answer begins, whose body is then to be closed.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r, err := c.http.Do(q)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if r.StatusCode == http.StatusOK {
		return r, nil
	}
	defer r.Body.Close()
	var f failure
	if json.NewDecoder(r.Body).Decode(&f) != nil || f.Error == "" {
		return nil, fmt.Errorf("what listens at %s is no weir: it says %s to %s", c.path, r.Status, path)
	}
	switch err := errors.New(f.Error); r.StatusCode {
	case http.StatusBadRequest:
		return nil, &BadRequest{Entry: f.Entry, Err: err}
	default:
		return nil, err
	}
}

// unreachable says what is wrong where there was no answer, and what to do.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if strings.HasPrefix(c.base, "https:") {
		return fmt.Errorf("ask the weir at %s: %w", c.path, err)
	}
	info, missing := os.Stat(c.path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied: you need to be root%s", c.path, orGroup(info))
	case errors.Is(missing, fs.ErrNotExist):
		return fmt.Errorf("%w: %s does not exist; start `weir run`", ErrNotRunning, c.path)
	case missing == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket: name the one that weir listens on", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens at %s any more; start `weir run`", ErrNotRunning, c.path)
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

// Package client asks a running daemon, or the hub of a fleet, by its API: see package api.
package client

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

	"weir/control/api"
	"weir/control/clock"
)

// Client is a client of a running daemon. It is safe for concurrent use.
type Client struct {
	path string // of the socket, or the URL
	base string // URL that paths are appended to
	http http.Client
	hub  bool // it is a hub's

	token  string // of an operator of a hub, over the network
	failed error  // why nothing can be asked; nil: it can

	patience  time.Duration                             // 0: the default
	slow      func(context.Context, *api.Status, error) // nil: nothing is done about slow answers
	unwatched bool                                      // requests have no end but their context's
}

// local is the base of URLs over a Unix socket.
const local = "http://weir"

// patience is the timeout for requests that need no work.
const patience = 5 * time.Second

// ErrNotRunning is wrapped by errors for a socket on which no daemon listens.
var ErrNotRunning = errors.New("the daemon is not running")

// ErrUnanswered is wrapped by errors for a daemon that has ended, or was too busy to take
// the request, before it answered, or does not answer in time: what was asked for may have been done.
var ErrUnanswered = errors.New("the daemon has not answered")

// ErrHubNotRunning is wrapped by errors for a socket on which no hub listens.
var ErrHubNotRunning = errors.New("the hub is not running on this host")

// Dial returns a client for the daemon that listens on a socket. It connects when
// needed, so that it outlives a restart of the daemon.
func Dial(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	// A connection for each request: the daemon may close one that is idle to make room, and a
	// request that had been sent there could not be repeated.
	t := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	return &Client{path: path, base: local, http: http.Client{Transport: t}}
}

// Address returns the socket or the URL that is asked.
func (c *Client) Address() string { return c.path }

// OnSlow has the client call a function once for each request that has not been answered for
// some time, with the status, or why there is none. Its context ends with the answer, which waits
// until it returns. OnSlow is called before the first request.
func (c *Client) OnSlow(patience time.Duration, slow func(context.Context, *api.Status, error)) {
	c.patience, c.slow = patience, slow
}

// DialHub is Dial for the hub of a fleet.
func DialHub(path string) *Client {
	c := Dial(path)
	c.hub = true
	return c
}

// DialOperator returns a client for the hub at a URL, https://HOST:PORT, that lets in the operator with a token. The hub
// must be that of the token, as a configuration of TLS says.
func DialOperator(address, token string, of *tls.Config) *Client {
	t := &http.Transport{TLSClientConfig: of, DisableKeepAlives: true}
	return &Client{path: address, base: address, hub: true, token: token, http: http.Client{Transport: t}}
}

// Failing returns a client that can ask nothing, and says why.
func Failing(err error) *Client { return &Client{failed: err} }

// DialTLS returns a client for the daemon at a URL, https://HOST:PORT, that accepts
// clients with a certificate. The files are PEM; ca contains the authorities for the
// daemon's certificate. The client connects when needed.
func DialTLS(address, cert, key, ca string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q: want https://HOST:PORT, where weir's api.listen is", address)
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	authorities, err := api.ReadAuthorities(ca)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: authorities}
	return &Client{path: address, base: "https://" + u.Host, http: http.Client{Transport: &http.Transport{TLSClientConfig: c}}}, nil
}

// Top returns the current traffic.
func (c *Client) Top(ctx context.Context) (*api.Top, error) {
	return Get[api.Top](ctx, c, api.TopPath)
}

// Weights returns the weights learned from the traffic.
func (c *Client) Weights(ctx context.Context) (*api.Weights, error) {
	return Get[api.Weights](ctx, c, api.WeightsPath)
}

// Lists returns the lists.
func (c *Client) Lists(ctx context.Context) (*api.Lists, error) {
	return Get[api.Lists](ctx, c, api.ListsPath)
}

// MaxChange bounds a change, in bytes of JSON.
const MaxChange = api.MaxBody

// ErrTooLarge is the error of a larger one.
var ErrTooLarge = api.ErrTooLarge

// Change adds or removes entries. It fails with a [*api.BadRequest] if the daemon does
// not understand or refuses the change. Change, Refresh and Reload have no timeout
// but that of ctx.
func (c *Client) Change(ctx context.Context, change api.Change) (*api.Changed, error) {
	return askChange[api.Changed](ctx, c, change)
}

func askChange[T any](ctx context.Context, c *Client, change api.Change) (*T, error) {
	method := http.MethodPost
	if change.Remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(change)
	switch {
	case err != nil:
		return nil, err
	case len(body) > MaxChange: // the server's refusal might not arrive while the body is being sent
		return nil, ErrTooLarge
	}
	return Ask[T](ctx, c, method, api.EntriesPath, body)
}

// Refresh reads the sources of a list now, or with "" those of all lists.
func (c *Client) Refresh(ctx context.Context, list string) (*api.Refreshed, error) {
	path := api.RefreshPath
	if list != "" {
		path = strings.Replace(api.RefreshListPath, "{list}", url.PathEscape(list), 1)
	}
	return Ask[api.Refreshed](ctx, c, http.MethodPost, path, nil)
}

// Accept is like Refresh, and accepts, this once, sources that have shrunk or
// become empty, or cover more than max_coverage.
func (c *Client) Accept(ctx context.Context, list string) (*api.Refreshed, error) {
	path := strings.Replace(api.RefreshListPath, "{list}", url.PathEscape(list), 1)
	return Ask[api.Refreshed](ctx, c, http.MethodPost, path+"?accept=true", nil)
}

// Collateral returns with which addresses of a list the host has conversed, "" for all lists.
func (c *Client) Collateral(ctx context.Context, list string) (*api.Collateral, error) {
	path := api.CollateralPath
	if list != "" {
		path += "?" + url.Values{api.ListParameter: {list}}.Encode()
	}
	return Get[api.Collateral](ctx, c, path)
}

// Floods says whether there is a flood.
func (c *Client) Floods(ctx context.Context) (*api.Floods, error) {
	return Get[api.Floods](ctx, c, api.FloodsPath)
}

// Worth returns what lists are worth.
func (c *Client) Worth(ctx context.Context) (*api.ListsWorth, error) {
	return Get[api.ListsWorth](ctx, c, api.WorthPath)
}

// Versions returns the versions of a list's sources. With "" for diff, each has its difference to
// the one before; with the beginning of a checksum, that version alone; with two, the second
// version has its difference to the first.
func (c *Client) Versions(ctx context.Context, list string, diff ...string) (*api.ListVersions, error) {
	path := strings.Replace(api.VersionsPath, "{list}", url.PathEscape(list), 1)
	if len(diff) == 0 {
		return Get[api.ListVersions](ctx, c, path)
	}
	return Ask[api.ListVersions](ctx, c, http.MethodGet, path+"?"+url.Values{api.DiffParameter: diff}.Encode(), nil)
}

// Rollback returns to the contents of a list before the last change of its sources. It fails
// with a [*api.BadRequest] if these are not known.
func (c *Client) Rollback(ctx context.Context, list string) (*api.Refreshed, error) {
	path := strings.Replace(api.RollbackPath, "{list}", url.PathEscape(list), 1)
	return Ask[api.Refreshed](ctx, c, http.MethodPost, path, nil)
}

// Reload makes the daemon read its configuration again.
func (c *Client) Reload(ctx context.Context) (*api.Reloaded, error) {
	return Ask[api.Reloaded](ctx, c, http.MethodPost, api.ReloadPath, nil)
}

// ReloadUnconfirmed is Reload, but the daemon returns to the configuration before
// after a time, unless Confirm is called.
func (c *Client) ReloadUnconfirmed(ctx context.Context, within time.Duration) (*api.Reloaded, error) {
	query := url.Values{api.ConfirmParameter: {strconv.FormatFloat(within.Seconds(), 'f', -1, 64)}}
	return Ask[api.Reloaded](ctx, c, http.MethodPost, api.ReloadPath+"?"+query.Encode(), nil)
}

// Confirm confirms the last reload.
func (c *Client) Confirm(ctx context.Context) error {
	_, err := Ask[api.Confirmed](ctx, c, http.MethodPost, api.ConfirmPath, nil)
	return err
}

// Get sends a GET request, with patience as the timeout.
func Get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t, err := Ask[T](soon, c, http.MethodGet, path, nil)
	if err != nil && ctx.Err() == nil && soon.Err() != nil {
		return nil, c.Silent(patience)
	}
	return t, err
}

// Ask sends a request and decodes the answer.
func Ask[T any](ctx context.Context, c *Client, method, path string, body []byte) (*T, error) {
	r, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	t := new(T)
	if err := json.NewDecoder(r.Body).Decode(t); err != nil {
		return nil, fmt.Errorf("answer of the daemon at %s to %s: %w", c.path, path, err)
	}
	return t, nil
}

// send sends a request and returns the response. The caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	if c.failed != nil {
		return nil, c.failed
	}
	w := new(watch)
	if !c.unwatched {
		ctx, w = c.watch(ctx, method)
	}
	r, err := c.do(ctx, method, path, body)
	if !c.unwatched {
		w.begun()
	}
	if err != nil {
		err = c.unreachable(ctx, err)
		w.end()
		return nil, err
	}
	r.Body = &watchedBody{r.Body, ctx, w}
	if r.StatusCode == http.StatusOK {
		return r, nil
	}
	defer r.Body.Close()
	var f api.Failure
	if json.NewDecoder(r.Body).Decode(&f) != nil || f.Error == "" {
		return nil, fmt.Errorf("the server at %s is not weir: it answers %s to %s", c.path, r.Status, path)
	}
	switch err := errors.New(f.Error); {
	case r.StatusCode == http.StatusRequestTimeout: // as where the host was suspended meanwhile
		return nil, c.noAnswer(fmt.Errorf("%w, at %s: %w", ErrUnanswered, c.path, err))
	case r.StatusCode == http.StatusBadRequest:
		return nil, &api.BadRequest{Entry: f.Entry, Err: err}
	case f.Starting != nil:
		return nil, c.noAnswer(&api.StartingError{Starting: *f.Starting})
	default:
		return nil, err
	}
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.base == local {
		until, limited := ctx.Deadline()
		if !limited {
			until = time.Now().Add(Silence) // to begin with it: by then the daemon was silent for too long
		}
		q.Header.Set(api.ProcessHeader, ownProcess())
		q.Header.Set(api.UntilHeader, strconv.FormatInt(int64(clock.This().Ran()+time.Until(until)), 10))
	}
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(q)
}

// unreachable explains why there was no answer, and what to do.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.hub && strings.HasPrefix(c.base, "https:") {
		return fmt.Errorf("ask the hub at %s: %w", c.path, err)
	}
	if strings.HasPrefix(c.base, "https:") {
		return fmt.Errorf("ask the daemon at %s: %w", c.path, err)
	}
	info, missing := os.Stat(c.path)
	notRunning, start := ErrNotRunning, "weir run"
	if c.hub {
		notRunning, start = ErrHubNotRunning, "weir hub run"
	}
	ended := hasEnded(err)
	switch {
	case c.hub && ended: // its socket may be gone, too
		return fmt.Errorf("the hub at %s ended before it answered: what was asked for may or may not have been done, and to ask again is safe: %w", c.path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w: you need to be root%s", c.path, fs.ErrPermission, orGroup(info))
	case errors.Is(missing, fs.ErrNotExist), errors.Is(err, fs.ErrNotExist): // a daemon may have begun to listen since
		return c.noAnswer(fmt.Errorf("%w: %s does not exist; start `%s`", notRunning, c.path, start))
	case missing == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket: name the one that weir listens on", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return c.noAnswer(fmt.Errorf("%w: nothing listens at %s any more; start `%s`", notRunning, c.path, start))
	case ended:
		return c.noAnswer(fmt.Errorf("%w, at %s: %w", ErrUnanswered, c.path, err))
	}
	return fmt.Errorf("ask the daemon at %s: %w", c.path, err)
}

// orGroup returns " or in group NAME" for the group that may use a socket as root
// may, and "" where the socket's file is unknown.
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

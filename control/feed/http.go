package feed

import (
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	errTimeout = errors.New("timeout")
	errStall   = errors.New("stall")
)

// route is how a request reaches its answer: a server that a URL names must not send
// weir to servers that only this host, or its network, can reach.
type route struct {
	redirected atomic.Bool
	from       atomic.Uint32 // reach of the URL's own server
}

type routeKey struct{} // of a route, in a request's context

// reach says who can reach an address.
type reach uint32

const (
	everybody  reach = iota // an address of the Internet
	ownHost                 // loopback, or none
	ownLink                 // link-local
	ownNetwork              // private
	ownAccess               // shared by the customers of a provider, or of an overlay network
	special                 // multicast, broadcast
)

// reachOf returns who can reach an address.
func reachOf(a netip.Addr) reach {
	switch a = a.Unmap(); {
	case a.IsLoopback(), a.IsUnspecified():
		return ownHost
	case a.IsLinkLocalUnicast():
		return ownLink
	case a.IsPrivate():
		return ownNetwork
	case sharedSpace.Contains(a):
		return ownAccess
	case !a.IsGlobalUnicast():
		return special
	}
	return everybody
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598

// newClient returns the client for a source's requests. A redirect to an address that not
// everybody can reach is followed only if the URL's own server has one of the same reach,
// by reachOf.
func newClient(s Source, reachOf func(netip.Addr) reach) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	// The address is checked when it is connected to: a name may have another one
	// each time it is looked up.
	control := func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		r, _ := ctx.Value(routeKey{}).(*route)
		to, err := netip.ParseAddrPort(address)
		if r == nil || err != nil || !r.redirected.Load() {
			return nil
		}
		if of := reachOf(to.Addr()); of != everybody && of != reach(r.from.Load()) {
			return fail(BadStatus, "redirected to %v, an internal address", to.Addr())
		}
		return nil
	}
	t.DialContext = (&net.Dialer{Timeout: s.ConnectTimeout, ControlContext: control}).DialContext
	t.TLSHandshakeTimeout = s.ConnectTimeout
	// Some servers serve list.gz as list with a Content-Encoding; the checksum
	// is of the file as stored.
	t.DisableCompression = s.proofs() != ""
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		const most = 10 // the usual limit
		if to, _ := r.Context().Value(routeKey{}).(*route); to != nil {
			to.redirected.Store(true)
		}
		switch first := via[0]; {
		case len(via) >= most:
			return fail(BadStatus, "more than %d redirects", most)
		case first.URL.Scheme == "https" && r.URL.Scheme != "https":
			return fail(BadStatus, "redirected from https to %s", r.URL.Scheme)
		case r.URL.Host != first.URL.Host && s.TLS.Cert != "":
			return fail(BadStatus, "redirected to %s, which must not see weir's certificate", r.URL.Host)
		case r.URL.Host != first.URL.Host:
			// The standard library only removes Authorization and Cookie.
			for name := range s.Headers {
				r.Header.Del(name)
			}
		}
		return nil
	}}
}

// agent returns the User-Agent of requests: a name and a version. CrowdSec keeps both
// of its clients, whose names are by convention those of its bouncers, and complains of
// all others than NAME/VERSION.
func agent(kind Kind, version string) string {
	name := "weir"
	if kind == CrowdSec {
		name = "crowdsec-weir-bouncer"
	}
	version = strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || r == '/' {
			return '-'
		}
		return r
	}, version)
	return name + "/" + cmp.Or(version, "unknown")
}

// get requests a URL. If the answer has status 200, the caller must close it;
// for status 304 the error is errUnchanged. Errors of reading the answer are
// failures, too.
func (s *source) get(ctx context.Context, at string, known validator) (*answer, error) {
	r, err := http.NewRequest(http.MethodGet, at, nil)
	if err != nil {
		return nil, fail(Unreachable, "malformed URL") // not err, which contains it
	}
	client, err := s.connection()
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", s.agent)
	if s.accept != "" {
		r.Header.Set("Accept", s.accept)
	}
	if home, err := url.Parse(string(s.URL)); err == nil && r.URL.Host == home.Host {
		for name, value := range s.Headers {
			r.Header.Set(name, value)
		}
	}
	if known.ETag != "" {
		r.Header.Set("If-None-Match", known.ETag)
	}
	if known.LastModified != "" {
		r.Header.Set("If-Modified-Since", known.LastModified)
	}

	to := &route{}
	ctx = context.WithValue(ctx, routeKey{}, to)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectStart: func(_, address string) {
		if !to.redirected.Load() { // or a server could name addresses that no list is to block
			s.connects(address)
		}
	}, GotConn: func(c httptrace.GotConnInfo) {
		if server, err := netip.ParseAddrPort(c.Conn.RemoteAddr().String()); err == nil && !to.redirected.Load() {
			to.from.Store(uint32(s.reachOf(server.Addr())))
		}
	}})
	ctx, cancel := context.WithCancelCause(ctx)
	a := &answer{
		source: s,
		ctx:    ctx,
		total:  time.AfterFunc(time.Duration(s.Timeout), func() { cancel(errTimeout) }),
		stall:  time.AfterFunc(s.StallTimeout, func() { cancel(errStall) }),
		cancel: func() { cancel(nil) },
	}
	a.Response, err = client.Do(r.WithContext(ctx))
	a.stall.Stop()
	if err != nil {
		a.release()
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, a.explain(err, Unreachable, "no answer")
	}
	if a.StatusCode == http.StatusOK {
		return a, nil
	}
	a.Close()
	if a.StatusCode == http.StatusNotModified && known != (validator{}) {
		return nil, errUnchanged
	}
	return nil, &failure{
		kind:       BadStatus,
		err:        fmt.Errorf("the server answered %q", a.Status),
		retryAfter: retryAfter(a.Header.Get("Retry-After"), time.Now()),
	}
}

// maxServers bounds the addresses of servers that are recorded: no list blocks them, and the
// owner of a server's name chooses them.
const maxServers = 16

// connects records a server that is about to be connected to.
func (s *source) connects(address string) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return // not an address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := to.Addr().Unmap(); len(s.asked) < maxServers && !slices.Contains(s.asked, a) {
		s.asked = append(slices.Clip(s.asked), a)
	}
}

// maxRetryAfter bounds the rest of a source that has failed: a server that asks for a
// year must not disable the feed.
const maxRetryAfter = 24 * time.Hour

// retryAfter parses a Retry-After header; it returns 0 if there is none.
func retryAfter(s string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(s); err == nil {
		return min(time.Duration(min(max(seconds, 0), int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// answer is a server's answer, a reader of its body.
type answer struct {
	*http.Response
	source       *source
	ctx          context.Context
	total, stall *time.Timer
	cancel       func()
	read         int64
}

func (a *answer) Read(p []byte) (int, error) {
	// Only the server's time counts, not the reader's.
	a.stall.Reset(a.source.StallTimeout)
	n, err := a.Body.Read(p)
	a.stall.Stop()
	a.read += int64(n)
	if err == nil || err == io.EOF {
		return n, err
	}
	if corrupt := (flate.CorruptInputError)(0); errors.As(err, &corrupt) ||
		errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return n, fail(Garbage, "content encoding: %w", err)
	}
	return n, a.explain(err, Truncated, fmt.Sprintf("the answer broke off after %d bytes", a.read))
}

// explain returns the failure of a request: a timeout or stall, otherwise kind,
// described by what.
func (a *answer) explain(err error, kind Failure, what string) error {
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errTimeout):
		return fail(TimedOut, "not done within %v", a.source.Timeout)
	case errors.Is(cause, errStall):
		return fail(Stalled, "no data for %v after %d bytes", a.source.StallTimeout, a.read)
	case errors.As(err, new(*failure)):
		return err
	}
	return fail(kind, "%s: %w", what, err)
}

func (a *answer) Close() error {
	defer a.release()
	return a.Body.Close()
}

func (a *answer) release() {
	a.total.Stop()
	a.stall.Stop()
	a.cancel()
}

// small reads a small document that belongs to a source, such as its checksum.
func (s *source) small(ctx context.Context, what, at string) ([]byte, error) {
	const most = 64 << 10 // a few hundred lines of checksums
	a, err := s.get(ctx, at, validator{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer a.Close()
	text, err := io.ReadAll(io.LimitReader(a, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case len(text) > most:
		return nil, fail(TooLarge, "%s: more than %d bytes", what, most)
	}
	return text, nil
}

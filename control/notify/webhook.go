package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// SignatureHeader is the header with the time of a request, and its signature: "t=SECONDS,
// v1=HEX", where HEX is the HMAC-SHA256 of "SECONDS.BODY" by the secret.
const SignatureHeader = "Weir-Signature"

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 4 << 10

// sign returns the value of SignatureHeader.
func sign(secret, body []byte, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: DefaultTimeout}).DialContext
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// post posts an event to the target's URL.
func (r *receiver) post(ctx context.Context, e Event) (answer string, err error) {
	body := e.body()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, string(r.URL), bytes.NewReader(body))
	if err != nil {
		return "", &failure{error: errors.New("malformed URL"), final: true} // not err, which contains it
	}
	var servers []netip.Addr
	q = q.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if to, err := netip.ParseAddrPort(i.Conn.RemoteAddr().String()); err == nil {
			servers = append(servers, to.Addr().Unmap())
		}
	}}))
	q.Header.Set("User-Agent", r.n.agent)
	for name, value := range r.Headers {
		q.Header.Set(name, value)
	}
	q.Header.Set("Content-Type", "application/json")
	secret, err := r.secret()
	if err != nil {
		return "", err // the file may be being replaced
	}
	if len(secret) > 0 {
		q.Header.Set(SignatureHeader, sign(secret, body, time.Now()))
	}
	client := http.Client{Transport: r.n.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a, err := client.Do(q)
	if len(servers) > 0 {
		r.mu.Lock()
		r.servers = servers
		r.mu.Unlock()
	}
	if err != nil {
		return "", explain(ctx, err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	answer = a.Status
	if said := line(string(text)); said != "" {
		answer += ": " + said
	}
	switch {
	case a.StatusCode/100 == 2:
		return answer, nil // even if the rest is missing
	case a.StatusCode/100 == 3:
		return answer, &failure{error: fmt.Errorf("the server answered %q and redirects to %s, which is not followed: name that URL instead", a.Status, redirect(a)), final: true}
	case err != nil:
		return answer, explain(ctx, err)
	}
	f := &failure{error: fmt.Errorf("the server answered %s", answer)}
	switch a.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		f.final = a.StatusCode/100 == 4
	}
	if seconds, err := strconv.Atoi(a.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f.retryAfter = time.Duration(min(seconds, int(maxRetry/time.Second))) * time.Second
	}
	return answer, f
}

// explain returns an error of a request without its URL.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Errorf("no answer: %w", err)
}

// redirect returns where an answer redirects to, without what may be secret.
func redirect(a *http.Response) string {
	to, err := a.Location()
	if err != nil {
		return "nowhere"
	}
	return URL(to.String()).Redacted()
}

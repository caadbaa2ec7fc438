package authority

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// TokensDir is the directory of tokens, below that of keys. A backup leaves it out: it would give hosts that have
// joined since their places back.
const TokensDir = "tokens"

// keptFor is how long a token is shown that no host can join by any more.
const keptFor = 30 * 24 * time.Hour

// Token lets hosts join. Who reads its record cannot use it.
type Token struct {
	ID      string         `json:"token"`
	Hash    string         `json:"secret_sha256"`
	Labels  []string       `json:"labels,omitempty"`
	Site    string         `json:"site,omitempty"`   // whose server the nodes connect to; "": the hub
	Ranges  []netip.Prefix `json:"ranges,omitempty"` // where hosts may join from; none: from anywhere
	Count   int            `json:"count"`            // of hosts
	Created time.Time      `json:"created"`
	Expires time.Time      `json:"expires"`
	Revoked time.Time      `json:"revoked,omitzero"`
	Joined  []Joined       `json:"joined"`
}

// Joined is a host that has joined. It counts before it has an answer.
type Joined struct {
	Node string    `json:"node"`
	User string    `json:"user"` // its public key
	From string    `json:"from"` // the address
	Time time.Time `json:"time"`
}

var tokens = kind[Token]{"token", TokensDir, enrollment.CheckToken, func(t Token) string { return t.ID }}

// Ended returns why a token lets no further host join, "" if it does.
func (t Token) Ended(now time.Time) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked"
	case !now.Before(t.Expires):
		return "expired"
	case len(t.Joined) >= t.Count:
		return "used up"
	}
	return ""
}

// NewToken makes a token with what is set of t, and returns its text, which is not kept.
func (a *Authority) NewToken(t Token) (Token, string, error) {
	of := enrollment.NewToken(a.pinned())
	t.ID, t.Hash, t.Created, t.Joined = of.ID, hashOf(of.Secret), time.Now().UTC(), []Joined{}
	for _, l := range t.Labels {
		if err := enrollment.CheckLabel(l); err != nil {
			return t, "", err
		}
	}
	if _, err := a.ServersOf(t.Site, nil); err != nil {
		return t, "", err
	}
	unlock, err := a.lock()
	if err != nil {
		return t, "", err
	}
	defer unlock()
	if err := forgetEnded(a, tokens, t.Created, func(t Token) time.Time { return t.Expires }); err != nil {
		return t, "", err
	}
	return t, of.String(), record(a, tokens, t)
}

// forgetEnded removes the records of tokens that ended long before a time. The authority is locked.
func forgetEnded[T any](a *Authority, k kind[T], now time.Time, end func(T) time.Time) error {
	some, err := all(a, k)
	if err != nil {
		return err
	}
	for _, t := range some {
		if now.Sub(end(t)) > keptFor {
			if err := durable.Remove(path(a, k, k.name(t))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tokens returns the tokens that were made, but for those that ended long ago, in the order of their IDs.
func (a *Authority) Tokens() ([]Token, error) { return all(a, tokens) }

// RevokeToken has a token let no further host join.
func (a *Authority) RevokeToken(id string) error {
	return change(a, tokens, id, func(t *Token) error {
		if t.Revoked.IsZero() {
			t.Revoked = time.Now().UTC()
		}
		return nil
	})
}

// ServersOf returns the servers of the nodes of a site, or otherwise.
func (a *Authority) ServersOf(site string, otherwise []string) ([]string, error) {
	if site == "" {
		return otherwise, nil
	}
	s, err := a.Site(site)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("no site %q was enrolled: weir hub site %s", site, site)
	}
	if err == nil && !s.Revoked.IsZero() {
		err = fmt.Errorf("site %q is revoked", site)
	}
	return s.Servers, err
}

// Refused is why a host may not join. Name and token are "" if they are not valid.
type Refused struct {
	Node, Token string
	Keys        bool // the host's keys are revoked, and others may do
	error
}

func (r Refused) Unwrap() error { return r.error }

// Because returns it with a reason.
func (r Refused) Because(text string) Refused { r.error = errors.New(text); return r }

// errUnknown is the same whether or not there is the token, for who guesses.
var errUnknown = errors.New("the hub has no such token, or its secret is another one")

// has reports whether the token has a secret.
func (t Token) has(secret string) bool { return hasHash(secret, t.Hash) }

// hasHash reports whether a secret has a hash, in a time that says nothing of either.
func hasHash(secret, hash string) bool {
	return subtle.ConstantTimeCompare([]byte(hashOf(secret)), []byte(hash)) == 1
}

// hashOf returns what is kept of a secret.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// lets returns why a host may not join from an address, which the token may have counted before.
func (t Token) lets(from netip.Addr, again bool) error {
	if why := t.Ended(time.Now()); why != "" && (why != "used up" || !again) {
		return fmt.Errorf("the token is %s", why)
	}
	if len(t.Ranges) > 0 && !slices.ContainsFunc(t.Ranges, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return fmt.Errorf("the token does not let hosts join from %v", from)
	}
	return nil
}

// mayBe returns why a host with the key of a user may not become a node, before which there was another one, or
// none, of its name; and whether it may with other keys.
func mayBe(before Member, user string) (otherKeys bool, err error) {
	_, former := before.Former[user]
	former = former || before.Before == user
	switch {
	case former, before.User == user && !before.Revoked.IsZero():
		return true, fmt.Errorf("the keys of this host were those of node %s, and are revoked", before.Name)
	case before.User != "" && before.User != user && before.Revoked.IsZero():
		return false, fmt.Errorf("there is a node %s, which is not replaced: choose another --name, or weir hub revoke %[1]s first", before.Name)
	}
	return false, nil
}

// Join lets a host join that has a token, from an address, or fails with [Refused]. It is recorded before it returns. A
// host that asks again, with the same keys and name, is the same one.
func (a *Authority) Join(r enrollment.Request, from netip.Addr, servers []string, tlsFirst bool) (n enrollment.Node, err error) {
	var who Refused
	refuse := func(err error) (enrollment.Node, error) {
		who.error = err
		return enrollment.Node{}, who
	}
	if err := enrollment.CheckToken(r.Token); err != nil {
		return refuse(err)
	}
	who.Token = r.Token
	name, _, err := r.Check()
	if enrollment.CheckName(name) == nil {
		who.Node = name
	}
	if err != nil {
		return refuse(err)
	}
	unlock, err := a.lock()
	if err != nil {
		return n, err
	}
	defer unlock()
	t, err := read(a, tokens, r.Token)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	if err != nil || !t.has(r.Secret) {
		return refuse(errUnknown)
	}
	again := slices.ContainsFunc(t.Joined, func(j Joined) bool { return j.Node == name && j.User == r.User })
	if err := t.lets(from, again); err != nil {
		return refuse(err)
	}
	before, err := read(a, nodes, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	if who.Keys, err = mayBe(before, r.User); err != nil {
		return refuse(err)
	}
	if servers, err = a.ServersOf(t.Site, servers); err != nil {
		return refuse(err)
	}
	n, m, err := a.grant(r, t.Labels, servers)
	if err != nil {
		return n, err
	}
	n.TLSFirst = tlsFirst && t.Site == ""
	m.Token, m.From, m.Site = t.ID, from.String(), &t.Site
	if !again { // first: what comes next may be cut short, and the host asks again
		t.Joined = append(t.Joined, Joined{name, r.User, m.From, m.Enrolled})
		if err := record(a, tokens, t); err != nil {
			return n, err
		}
	}
	return n, a.enter(m)
}

package authority

import (
	"errors"
	"io/fs"
	"maps"
	"time"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

const (
	// A node that was away may renew its certificate for this long after the end.
	renewable = 365 * 24 * time.Hour

	// clockSlack bounds how far behind the clock of a server may be.
	clockSlack = 90 * 24 * time.Hour
)

// over reports whether a user ended longer ago than since. One whose end is not known has not.
func (m Member) over(user string, now time.Time, since time.Duration) bool {
	end, ends := m.Ends[user]
	return user == "" || ends && now.Sub(end) > since
}

// Tidy forgets revocations of users that can neither connect nor renew any more, at a time by a clock that is not set,
// and nodes that are revoked and have no other users.
func (a *Authority) Tidy(now time.Time) error {
	a.tidied.Store(&now)
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	all, err := a.AllMembers()
	for name, m := range all {
		had := len(m.Former)
		maps.DeleteFunc(m.Former, func(u string, _ time.Time) bool { return m.over(u, now, renewable+clockSlack) })
		maps.DeleteFunc(m.Ends, func(u string, _ time.Time) bool {
			_, former := m.Former[u]
			return !former && u != m.User && u != m.Before
		})
		switch gone := m.over(m.User, now, renewable+clockSlack) && m.over(m.Before, now, renewable+clockSlack); {
		case !m.Revoked.IsZero() && gone && len(m.Former) == 0:
			err = errors.Join(err, durable.Remove(path(a, nodes, name)))
		case len(m.Former) < had:
			err = errors.Join(err, record(a, nodes, m))
		}
	}
	return err
}

// Renew grants a node other credentials, which asks for them by those that it has, or fails with [Refused]. They are
// recorded before it returns. The former ones are good until the node has connected with the new ones, or they end. A
// node that asks again, with the same keys, gets what it has missed.
func (a *Authority) Renew(r enrollment.Request, servers []string) (n enrollment.Node, err error) {
	var who Refused
	refuse := func(why string) (enrollment.Node, error) {
		return enrollment.Node{}, who.Because(why)
	}
	name, _, err := r.Check()
	if enrollment.CheckName(name) == nil {
		who.Node = name
	}
	if err != nil {
		return refuse(err.Error())
	}
	has, err := r.Renewed()
	if err != nil {
		return refuse(err.Error())
	}
	if has.Issuer != a.scope.public || has.Name != name {
		return refuse("what it was granted before is of another fleet, or of another node")
	}
	unlock, err := a.lock()
	if err != nil {
		return n, err
	}
	defer unlock()
	before, err := read(a, nodes, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	user, issued, end := has.Subject, time.Unix(has.IssuedAt, 0), time.Unix(has.Expires, 0)
	_, former := before.Former[user]
	_, next := before.Former[r.User]
	again := r.User == before.User && user == before.Before
	switch {
	case !before.Revoked.IsZero():
		return refuse("the node is revoked: weir join it with a token")
	case former, next, user == before.Before && !again, r.User == user:
		return refuse("its keys were renewed before, or revoked: two hosts have them, or it was restored from an older copy; weir join it with a token")
	case user != before.User && !again && !issued.After(before.Issued()): // else the hub's keys are of a backup
		return refuse("its keys are older than those that the node has: weir join it with a token")
	case time.Now().After(end.Add(renewable)):
		return refuse("its keys have ended more than a year ago: weir join it with a token")
	}
	n, m, err := a.grant(r, before.Labels, servers)
	if err != nil {
		return n, err
	}
	m.Renewed, m.Token, m.From, m.Before = m.Enrolled, before.Token, before.From, user
	m.Labeled, m.Site = before.Labeled, before.Site
	if !before.Enrolled.IsZero() {
		m.Enrolled = before.Enrolled
	}
	if again {
		m.Renewed = before.Renewed
	}
	m.Ends[user] = end.UTC()
	m.follows(before, before.User, before.Before)
	return n, record(a, nodes, m)
}

// Proved takes in that a node has connected as a user. If that is the one to which it was renewed last, the former
// one is revoked.
func (a *Authority) Proved(name, user string) error {
	if err := enrollment.CheckName(name); err != nil {
		return err
	}
	if m, err := read(a, nodes, name); err != nil || m.User != user || m.Before == "" {
		return nil // as of most connections
	}
	return change(a, nodes, name, func(m *Member) error {
		if m.User == user && m.Before != "" {
			before := *m
			m.Before = ""
			m.follows(before, before.Before)
		}
		return nil
	})
}

package hub

import (
	"cmp"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/filter/ordered"
)

// credential is that a node or site was enrolled or revoked, or a node renewed, labelled or forgotten.
type credential struct {
	change, name string
	at           int64 // Unix time in ns
}

// how is by what a node was enrolled.
type how struct{ source, reason string }

// enrollments records in the audit which nodes and sites are enrolled and revoked: commands do
// that without asking the hub.
type enrollments struct {
	authority *authority.Authority
	audit     *audit.Log
	seen      map[credential]bool
	since     time.Time // what came before, and is not seen, is not new
	stamp     authority.Stamp
}

// newEnrollments reads from the audit what an earlier process has recorded.
func newEnrollments(a *authority.Authority, l *audit.Log) *enrollments {
	e := &enrollments{authority: a, audit: l, seen: make(map[credential]bool)}
	records := l.Last(api.MaxAudit)
	for _, r := range records {
		switch {
		case (r.Source == bySource || r.Change == audit.Join || r.Change == audit.Renew) && r.Error == "" && len(r.First) == 1:
			e.seen[credential{r.Change, r.First[0], r.Time.UnixNano()}] = true
		case len(records) == api.MaxAudit: // what came before may be in an older part
			e.since = r.Time // in the end the earliest
		}
	}
	return e
}

// all returns the credentials that the authority knows, in the order of time.
func (e *enrollments) all() (all []credential, by map[credential]how, err error) {
	by = make(map[credential]how)
	add := func(enroll, revoke, name string, enrolled, revoked time.Time) {
		all = append(all, credential{enroll, name, enrolled.UnixNano()})
		if !revoked.IsZero() {
			all = append(all, credential{revoke, name, revoked.UnixNano()})
		}
	}
	members, err := e.authority.AllMembers()
	if err != nil {
		return nil, nil, err
	}
	for name, m := range members {
		enroll := audit.Enroll
		if m.Token != "" {
			enroll = audit.Join
			by[credential{enroll, name, m.Enrolled.UnixNano()}] = how{m.From, "token " + m.Token}
		}
		add(enroll, audit.Revoke, name, m.Enrolled, m.Revoked)
		if !m.Renewed.IsZero() {
			renewed := credential{audit.Renew, name, m.Renewed.UnixNano()}
			all, by[renewed] = append(all, renewed), how{"node " + name, ""}
		}
		if !m.Labeled.IsZero() {
			labeled := credential{audit.Label, name, m.Labeled.UnixNano()}
			all, by[labeled] = append(all, labeled), how{"", strings.Join(m.Labels, ",")}
		}
		if !m.Forgotten.IsZero() {
			all = append(all, credential{audit.Forget, name, m.Forgotten.UnixNano()})
		}
	}
	sites, err := e.authority.Sites()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range sites {
		add(audit.EnrollSite, audit.RevokeSite, s.Name, s.Enrolled, s.Revoked)
	}
	operators, err := e.authority.Operators()
	if err != nil {
		return nil, nil, err
	}
	for _, o := range operators {
		by[credential{audit.Operator, o.Name, o.Created.UnixNano()}] = how{"", "role " + o.Role + ", token " + o.ID}
		add(audit.Operator, audit.RevokeOperator, o.Name, o.Created, o.Revoked)
	}
	ordered.By(all, func(a, b credential) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name))
	})
	return all, by, nil
}

// bySource is the source of records of commands that do not ask the hub.
const bySource = "weir-hub"

// record records what is new.
func (e *enrollments) record() {
	next, err := e.authority.Stamp()
	if err != nil || next == e.stamp {
		return
	}
	all, by, err := e.all() // Run logs why they cannot be read
	for _, c := range all {
		if !e.seen[c] && time.Unix(0, c.at).After(e.since) {
			how := by[c]
			e.audit.Record(audit.Record{
				Time: time.Unix(0, c.at).UTC(), Change: c.change, Entries: 1, Changed: 1, First: []string{c.name},
				Source: cmp.Or(how.source, bySource), Reason: how.reason,
			})
		}
		e.seen[c] = true
	}
	if err == nil {
		e.stamp, e.since = next, time.Time{}
	}
}

package hub

import (
	"cmp"
	"context"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/filter/ordered"
)

// credential is that a node or site was enrolled or revoked, or a node forgotten.
type credential struct {
	change, name string
	at           int64 // Unix time in ns
}

// credentials returns what the authority knows of, in the order of time.
func (h *Hub) credentials() (all []credential, err error) {
	add := func(enroll, revoke, name string, enrolled, revoked time.Time) {
		all = append(all, credential{enroll, name, enrolled.UnixNano()})
		if !revoked.IsZero() {
			all = append(all, credential{revoke, name, revoked.UnixNano()})
		}
	}
	members, err := h.o.Authority.AllMembers()
	if err != nil {
		return nil, err
	}
	for name, m := range members {
		add(audit.Enroll, audit.Revoke, name, m.Enrolled, m.Revoked)
		if !m.Forgotten.IsZero() {
			all = append(all, credential{audit.Forget, name, m.Forgotten.UnixNano()})
		}
	}
	sites, err := h.o.Authority.Sites()
	if err != nil {
		return nil, err
	}
	for _, s := range sites {
		add(audit.EnrollSite, audit.RevokeSite, s.Name, s.Enrolled, s.Revoked)
	}
	ordered.By(all, func(a, b credential) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name))
	})
	return all, nil
}

// bySource is the source of records of what commands do without asking the hub.
const bySource = "weir-hub"

// recordedCredentials returns what the audit has of an earlier process. What came before
// since may be in an older part of it.
func (h *Hub) recordedCredentials() (seen map[credential]bool, since time.Time) {
	seen = make(map[credential]bool)
	records := h.audit.Last(api.MaxAudit)
	for _, r := range records {
		switch {
		case r.Source == bySource && len(r.First) == 1:
			seen[credential{r.Change, r.First[0], r.Time.UnixNano()}] = true
		case len(records) == api.MaxAudit:
			since = r.Time // in the end the earliest
		}
	}
	return seen, since
}

// auditCredentials records which nodes and sites are enrolled and revoked, until ctx is
// done: commands do that without asking the hub. What was seen or came before since is not
// new.
func (h *Hub) auditCredentials(ctx context.Context, seen map[credential]bool, since time.Time) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var stamp time.Time
	for {
		if next, err := h.o.Authority.Stamp(); err == nil && !next.Equal(stamp) {
			all, err := h.credentials() // the loop of Run logs why they cannot be read
			for _, c := range all {
				if !seen[c] && time.Unix(0, c.at).After(since) {
					h.audit.Record(audit.Record{
						Time: time.Unix(0, c.at).UTC(), Change: c.change, Entries: 1, Changed: 1, First: []string{c.name}, Source: bySource,
					})
				}
				seen[c] = true
			}
			if err == nil {
				stamp, since = next, time.Time{}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

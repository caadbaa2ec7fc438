package hub

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// rotation replaces the authority's certificate, which a command has begun: each step ends when all nodes report that
// they have done their part, and sites are enrolled for it.
type rotation struct {
	log       *slog.Logger
	authority *authority.Authority
	audit     *audit.Log
	nodes     *nodes

	mu      sync.Mutex
	step    authority.Step
	waits   []string // for these nodes and sites
	problem string   // the certificates cannot be read or written; "": they can
}

// steps say what a step waits for.
var steps = map[authority.Step]string{
	authority.StepTrust: "step 1 of 2, to trust the next one",
	authority.StepIssue: "step 2 of 2, to have certificates of the next one",
}

// reread takes in that a command has begun to replace the certificate.
func (r *rotation) reread() {
	changed, err := r.authority.Reread()
	r.note(err)
	if changed {
		r.record(r.authority.Rotation())
	}
}

// note takes in whether the certificates can be read and written.
func (r *rotation) note(err error) {
	text := ""
	if err != nil {
		text = "the authority's certificate: " + err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != "" && text != r.problem {
		r.log.Error(text)
	}
	r.problem = text
}

// record records that a step has begun, or that all have ended.
func (r *rotation) record(step authority.Step) {
	text := steps[step]
	if step == authority.StepNone {
		text = "done"
	}
	r.log.Info("the authority's certificate is replaced", "step", text)
	r.audit.Record(audit.Record{Change: audit.Rotate, Entries: 1, Changed: 1, First: []string{text}, Source: bySource})
}

// look ends the step if no one holds it up.
func (r *rotation) look(members map[string]authority.Member, maxAge time.Duration, now time.Time) {
	step := r.authority.Rotation()
	var waits []string
	if step != authority.StepNone {
		sites, err := r.authority.Sites()
		if err != nil {
			r.note(err)
			return
		}
		if waits = slices.Concat(r.nodes.unrotated(r.authority, members, maxAge, now), unrotatedSites(r.authority, sites)); len(waits) == 0 {
			// A node may have been enrolled since they were read.
			if members, err = r.authority.Members(); err != nil {
				r.note(err)
				return
			}
			waits = r.nodes.unrotated(r.authority, members, maxAge, now)
		}
	}
	r.mu.Lock()
	r.step, r.waits = step, waits
	r.mu.Unlock()
	if step == authority.StepNone || len(waits) > 0 {
		return
	}
	err := r.authority.Proceed(step)
	r.note(err)
	if err == nil {
		r.record(r.authority.Rotation())
	}
}

// unrotated returns which nodes have not done their part in a step, by their last reports, or are not heard.
func (n *nodes) unrotated(a *authority.Authority, members map[string]authority.Member, maxAge time.Duration, now time.Time) (names []string) {
	next, ca := a.Next()
	want := wire.Assignment{CA: string(ca)}.Settings().CA
	issues := a.Rotation() == authority.StepIssue
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var is *api.NodeSettings
		if from := n.all[name]; from != nil && now.Sub(from.seen) < maxAge {
			is = from.status.Settings
		}
		if members[name].Revoked.IsZero() && (is == nil || is.CA != want || issues && is.Issuer != next) {
			names = append(names, name)
		}
	}
	return names
}

// unrotatedSites returns which sites are to be enrolled anew in a step.
func unrotatedSites(a *authority.Authority, sites []authority.Site) (names []string) {
	next, _ := a.Next()
	for _, s := range sites {
		at := slices.Index(s.Issuers, next)
		if s.Revoked.IsZero() && (at < 0 || at > 0 && a.Rotation() == authority.StepIssue) {
			names = append(names, "site "+s.Name+" (enroll it anew)")
		}
	}
	return names
}

// problems returns why the replacement does not go on.
func (r *rotation) problems() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem != "" {
		all = append(all, r.problem)
	}
	if len(r.waits) > 0 {
		all = append(all, fmt.Sprintf("the authority's certificate is being replaced, %s: waits for %s; revoke what is gone", steps[r.step], named(r.waits)))
	}
	return all
}

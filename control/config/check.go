package config

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"weir/control/observe/heavy"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/loader"
)

// maxName is how long a list's name may be: a name of a directory, and a label
// of metrics.
const maxName = 64

// namePattern is what package feed takes for a name.
const namePattern = `^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`

var matchesName = regexp.MustCompile(namePattern).MatchString

// check calls fail for what is wrong with the values together, or with one in a
// way that its type does not tell.
func (c *Config) check(fail func(path string, err error)) {
	failf := func(path, format string, args ...any) { fail(path, fmt.Errorf(format, args...)) }

	if len(c.Interfaces) == 0 {
		failf("interfaces", "no interface to filter on")
	}
	unique(c.Interfaces, "interfaces", failf, func(i Interface) any { return loader.Target{Netns: i.Netns, Iface: i.Name} })
	for i, iface := range c.Interfaces {
		if err := iface.check(); err != nil {
			fail(fmt.Sprintf("interfaces[%d]", i), err)
		}
	}
	c.Failsafe.check(failf)
	if !filepath.IsAbs(string(c.Pins)) {
		failf("pins", "%q: want an absolute path", c.Pins)
	}
	if c.MaxCoverage == 0 {
		failf("max_coverage", "no list could have any entry")
	}
	c.API.check(failf)
	between(c.Learning.HalfLife, time.Second, 24*time.Hour, "learning.half_life", failf)

	failFields("digest", c.Digest.Validate(), fail)
	if c.Digest.Archive.Size > 0 && c.StateDir == "" {
		failf("digest.archive", "it is kept below state_dir, which is empty")
	}
	if len(c.Trackers) > loader.MaxTrackers {
		failf("trackers", "%d of them: the most are %d", len(c.Trackers), loader.MaxTrackers)
	}
	unique(c.Trackers, "trackers", failf, func(t heavy.Spec) any { return t.Label() })
	for i, t := range c.Trackers {
		failFields(fmt.Sprintf("trackers[%d]", i), t.Validate(), fail)
	}
	c.Loop.check(failf)
	c.checkMulticast(failf)
	for _, l := range c.Lists {
		l.check(join("lists", l.Name), fail)
	}
}

// checkMulticast says where the forwarding of multicast would not do.
func (c *Config) checkMulticast(failf func(string, string, ...any)) {
	m := c.Multicast
	if len(m.Interfaces) == 0 {
		return
	}
	unique(m.Interfaces, "multicast.interfaces", failf, func(i MulticastInterface) any { return i.Name })
	groups := make(map[Group]bool)
	for i, iface := range m.Interfaces {
		at := fmt.Sprintf("multicast.interfaces[%d]", i)
		if err := (Interface{Name: iface.Name}).check(); err != nil {
			failf(at, "%w", err)
		} else if strings.ContainsAny(iface.Name, `*?[\`) {
			failf(at, "%q: a pattern, where each interface wants groups of its own: name them one by one", iface.Name)
		}
		unique(iface.Groups, at+".groups", failf, func(g Group) any { return g })
		for _, g := range iface.Groups {
			groups[g] = true
		}
	}
	if len(groups) > m.MaxGroups {
		failf("multicast.max_groups", "%d groups are wanted, more than %d", len(groups), m.MaxGroups)
	}
	for i, iface := range c.Interfaces {
		at := fmt.Sprintf("interfaces[%d]", i)
		if iface.XDP != loader.Native {
			failf(at, "multicast is forwarded in native mode only, not %v: elsewhere the copies of a packet may share their bytes", iface.XDP)
		}
		if iface.Netns != c.Interfaces[0].Netns {
			failf(at, "multicast is forwarded within one network namespace: all interfaces must be in the same")
		}
	}
}

// unique reports elements that are there twice, by what tells them apart.
func unique[T any](all []T, path string, failf func(string, string, ...any), id func(T) any) {
	first := map[any]int{}
	for i, e := range all {
		if j, twice := first[id(e)]; twice {
			failf(fmt.Sprintf("%s[%d]", path, i), "the same as %s[%d]", path, j)
			continue
		}
		first[id(e)] = i
	}
}

func between(d quantity.Duration, least, most time.Duration, path string, failf func(string, string, ...any)) {
	if d < quantity.Duration(least) || d > quantity.Duration(most) {
		failf(path, "%v is not between %v and %v", d, quantity.Duration(least), quantity.Duration(most))
	}
}

func (i Interface) check() error {
	const most = 15 // IFNAMSIZ, without the end
	_, err := path.Match(i.Name, "")
	isPattern := strings.ContainsAny(i.Name, `*?[\`)
	switch {
	case err != nil:
		return fmt.Errorf("%q: a pattern with a bracket that does not end", i.Name)
	case i.Name == "" || strings.ContainsAny(i.Name, "/: \t\n") || !isPattern && len(i.Name) > most:
		return fmt.Errorf("%q cannot be an interface: 1 to %d characters, no slash, colon or space", i.Name, most)
	}
	return nil
}

func (f Failsafe) check(failf func(string, string, ...any)) {
	unique(f.Ports, "failsafe.ports", failf, func(p verdict.FailsafePort) any { return p })
	if len(f.Ports) > verdict.MaxFailsafe {
		failf("failsafe.ports", "%d of them: the most are %d", len(f.Ports), verdict.MaxFailsafe)
	}
	v4 := 0
	first := map[any]int{}
	for i, p := range f.Prefixes {
		if j, twice := first[p]; twice {
			failf(fmt.Sprintf("failsafe.prefixes[%d]", i), "the same as failsafe.prefixes[%d]", j)
		}
		first[p] = i
		if p.Addr().Is4() {
			v4++
		}
	}
	if v6 := len(f.Prefixes) - v4; max(v4, v6) > verdict.MaxFailsafe {
		failf("failsafe.prefixes", "%d of IPv4 and %d of IPv6: the most of each are %d", v4, v6, verdict.MaxFailsafe)
	}
}

func (a API) check(failf func(string, string, ...any)) {
	all := a.TLS.Cert != "" && a.TLS.Key != "" && a.TLS.ClientCA != ""
	switch {
	case a.Listen != "" && !all:
		failf("api.listen", "it takes tls with cert, key and client_ca: who reaches the daemon controls the filter")
	case a.Listen == "" && a.TLS != TLS{}:
		failf("api.tls", "it is for listen, which is missing")
	}
}

func (l List) check(path string, fail func(string, error)) {
	failf := func(path, format string, args ...any) { fail(path, fmt.Errorf(format, args...)) }
	if !matchesName(l.Name) || len(l.Name) > maxName {
		failf(path, `the name %q: want up to %d letters, digits, "_", "-" and inner dots`, l.Name, maxName)
		return // feeds are called after it
	}
	if l.TTL > 0 && len(l.Sources) > 0 && l.TTL < l.Interval+l.Jitter {
		failf(path+".ttl", "%v is less than interval and jitter: entries would expire between two fetches", l.TTL)
	}

	failFields(path, l.Spec.Validate(), fail)
}

// failFields reports the errors in the fields of what is at a path.
func failFields(path string, err error, fail func(string, error)) {
	var errs quantity.FieldErrors
	errors.As(err, &errs)
	for _, e := range errs {
		at := path
		if e.Field != "" {
			at += "." + e.Field
		}
		fail(at, e.Err)
	}
}

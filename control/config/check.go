package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/control/engine"
	"weir/control/feed"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stages"
	"weir/filter/verdict"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// maxName is the maximum length of a list's name, which is the name of a directory
// and a label of metrics.
const maxName = 64

// MaxLists bounds the lists of a configuration. In the sets, each is two of at most 65,535:
// what its sources contain, and manual entries. What a daemon does each second takes time in
// proportion to them, about a fifth of a core for 4,000.
const MaxLists = 10_000

// The lists of a daemon that commands change which name none.
const (
	DefaultBlock = "manual"
	DefaultAllow = "manual-allow"
)

// Defaults are the lists that commands change which name none, by action. They exist also where
// they are not configured.
type Defaults map[Action]string

// The defaults of a daemon, and those of the hub of a fleet.
var (
	DefaultLists = Defaults{Block: DefaultBlock, Allow: DefaultAllow}
	FleetLists   = Defaults{Block: FleetBlock, Allow: FleetAllow}
)

// Of returns the list of a command with an action, which may name one.
func (d Defaults) Of(named, action string) string { return cmp.Or(named, d[Action(action)]) }

// Has reports whether a list is one of the defaults.
func (d Defaults) Has(name string) bool { return name == d[Block] || name == d[Allow] }

// With returns lists with those of the defaults that are not among them.
func (d Defaults) With(lists []List) []List {
	lists = slices.Clone(lists)
	for _, action := range []Action{Block, Allow} {
		var l List
		l.SetDefaults()
		l.Name, l.Action = d[action], action
		if !slices.ContainsFunc(lists, func(o List) bool { return o.Name == l.Name }) {
			lists = append(lists, l)
		}
	}
	return lists
}

// check refuses another action of a default.
func (d Defaults) check(errs *quantity.FieldErrors, l List) {
	for action, name := range d {
		if l.Name == name && l.Action != action {
			errs.Failf(Join("lists", l.Name)+".action", "want %s: the commands without --list change this list", action)
		}
	}
}

// maxTargets bounds the receivers of notifications, each of which has a queue.
const maxTargets = 16

// namePattern matches the names that package feed accepts.
const namePattern = `^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`

var matchesName = regexp.MustCompile(namePattern).MatchString

// check returns the errors that a value's own type does not find: numbers out of
// range, and values that do not go together.
func (c *Config) check() quantity.FieldErrors {
	var errs quantity.FieldErrors
	checkRanges(&errs, "", reflect.ValueOf(c).Elem())
	if len(c.Interfaces) == 0 {
		errs.Failf("interfaces", "no interface to filter on")
	}
	quantity.Unique(&errs, "interfaces", len(c.Interfaces), func(i int) any { return netif.Target{Netns: c.Interfaces[i].Netns, Iface: c.Interfaces[i].Name} })
	for i, iface := range c.Interfaces {
		errs.Add(fmt.Sprintf("interfaces[%d]", i), stage.CheckName(iface.Name))
		if iface.XDP >= hooks.TC {
			errs.Failf(fmt.Sprintf("interfaces[%d].xdp", i), "%v is not an XDP mode: want native or generic", iface.XDP)
		}
		iface.AtInterface.CheckStages(&errs, fmt.Sprintf("interfaces[%d]", i), c.Sends(iface), &c.Sections)
		errs.Add(fmt.Sprintf("interfaces[%d].attach", i), iface.checkAttach())
		if iface.Hook == HookTC {
			errs.Add(fmt.Sprintf("interfaces[%d].hook", i), c.checkTC(iface))
		}
		c.CheckStagesAt(&errs, fmt.Sprintf("interfaces[%d]", i), iface.Place(), iface.Netns == c.Interfaces[0].Netns)
	}
	errs.Add("failsafe", c.Failsafe.check().Err())
	c.CheckStages(&errs, string(c.StateDir))
	checkCoverage(&errs, c.MaxCoverage)
	if !filepath.IsAbs(string(c.Pins)) {
		errs.Failf("pins", "%q: want an absolute path", c.Pins)
	}
	errs.Add("api", c.API.check().Err())
	errs.Add("console", c.Console.check(c.API.Socket).Err())
	quantity.Between(&errs, "flood.ttl", c.Flood.TTL, quantity.Duration(10*time.Second), quantity.Duration(24*time.Hour))
	quantity.Between(&errs, "flood.trial", c.Flood.Trial, quantity.Duration(time.Second), quantity.Duration(time.Minute))
	switch auto := c.Flood.Apply == FloodAuto; {
	case auto && !c.Collateral.On():
		errs.Failf("flood.apply", "auto takes collateral: without it, weir does not know whom a pattern cuts off")
	case auto && len(c.Failsafe.Ports)+len(c.Failsafe.Prefixes) == 0:
		errs.Failf("flood.apply", "auto takes failsafe ports or prefixes: a rule could lock you out")
	case auto && !bool(c.Samples):
		errs.Failf("flood.apply", "auto takes samples: without them, no flood is seen")
	case c.Flood.Trial >= c.Flood.TTL:
		errs.Failf("flood.trial", "%v is not shorter than ttl, %v", c.Flood.Trial, c.Flood.TTL)
	}
	quantity.Between(&errs, "learning.half_life", c.Learning.HalfLife, quantity.Duration(time.Second), quantity.Duration(24*time.Hour))
	c.TrackerSections.Check(&errs)
	if len(c.Notify.Targets) > maxTargets {
		errs.Failf("notify.targets", "there are %d: the maximum is %d", len(c.Notify.Targets), maxTargets)
	}
	for _, t := range c.Notify.Targets {
		errs.Add(Join("notify.targets", t.Name), t.Validate())
	}
	errs.Add("export", c.Export.Validate())
	errs.Add("notify.surge", c.Notify.Surge.Validate())
	checkMaxRate(&errs, "fleet.max_rate", c.Fleet.MaxRate)
	if c.Fleet.On() && c.Fleet.MaxAge != 0 {
		quantity.Between(&errs, "fleet.max_age", c.Fleet.MaxAge, quantity.Duration(time.Second), quantity.Duration(30*24*time.Hour))
	}
	if n := len(c.Lists); n > MaxLists {
		errs.Failf("lists", "there are %d: the maximum is %d; join some: a list may have several sources", n, MaxLists)
	}
	for _, l := range c.Lists {
		if c.Fleet.On() && strings.HasPrefix(l.Name, FleetPrefix) {
			errs.Failf(Join("lists", l.Name), "names that begin with %s are for the fleet's lists", FleetPrefix)
		}
		errs.Add(Join("lists", l.Name), l.check().Err())
		DefaultLists.check(&errs, l)
		if len(l.Labels) > 0 {
			errs.Failf(Join("lists", l.Name)+".labels", "labels are for lists of a hub, which has nodes")
		}
		if l.Direction == engine.Out && !c.FiltersOutgoing() {
			errs.Failf(Join(Join("lists", l.Name), "direction"), "outgoing packets are filtered on no interface: set egress: true on one")
		}
	}
	c.checkRules(&errs)
	return errs
}

// checkAttach fails where an interface is to be attached to in a way that its hook has not.
func (i Interface) checkAttach() error {
	if i.Attach == AttachDispatcher && i.Hook == HookTC {
		return errors.New("dispatcher: libxdp's dispatcher runs at XDP: leave out hook: tc")
	}
	return nil
}

// checkTC fails where an interface with the hook tc is to have what needs XDP.
func (c *Config) checkTC(i Interface) error {
	const hook = "tc: "
	stages := i.AtInterface.NeedsXDP()
	if stages == "" {
		_, stages = c.Sections.NeedsXDP()
	}
	switch {
	case i.XDP != hooks.Native:
		return fmt.Errorf(hook+"xdp: %v is a mode of hook xdp: leave one of the two out", i.XDP)
	case stages != "":
		return errors.New(hook + stages + ": that takes hook xdp")
	}
	return nil
}

// Stages returns the stages that the configuration has, with the limits that commands have set.
func (c *Config) Stages(by stages.Limits) (*stages.Table, error) {
	var at []stages.Interface
	for i := range c.Interfaces {
		of := &c.Interfaces[i]
		all := stages.Interface{Target: of.target(), AtInterface: &of.AtInterface}
		for t, rate := range by.Interfaces {
			if of.Covers(t) && t != all.Target { // the first that covers it counts
				at = append(at, stages.Interface{Target: t, AtInterface: of.Limited(rate)})
			}
		}
		if rate, ok := by.Interfaces[all.Target]; ok {
			all.AtInterface = of.Limited(rate)
		}
		at = append(at, all)
	}
	return stages.New(&c.Sections, c.TrackerSections, at, by)
}

func (i *Interface) target() netif.Target { return netif.Target{Netns: i.Netns, Iface: i.Name} }

// Covers reports whether the interface is a target, or a pattern that covers it.
func (i *Interface) Covers(t netif.Target) bool { return stage.Covers(i.target(), t) }

// CheckPolice returns why an interface, or a pattern, cannot be limited to a rate.
func (c *Config) CheckPolice(t netif.Target, rate quantity.Rate) error {
	at := slices.IndexFunc(c.Interfaces, func(i Interface) bool { return i.Covers(t) })
	if at < 0 {
		return fmt.Errorf("%v is not filtered: interfaces names it nowhere", t)
	}
	of := c.Interfaces[at]
	of.AtInterface = *of.Limited(rate)
	if errs := of.Police.Check(); errs != nil {
		return errs[0].Err
	}
	if of.Hook == HookTC {
		return fmt.Errorf("%v: %w", t, c.checkTC(of))
	}
	return nil
}

// Advice returns how lists could lock somebody out, given whether they drop anything.
func (c *Config) Advice(drop bool) []string {
	if !drop || c.Monitor || len(c.Failsafe.Ports)+len(c.Failsafe.Prefixes) > 0 {
		return nil
	}
	return []string{"packets are dropped, and nothing is failsafe: a wrong entry could lock you out (failsafe: ports, prefixes; --failsafe-port)"}
}

// Sends reports whether an interface's outgoing packets are filtered, too.
func (c *Config) Sends(i Interface) bool { return i.Egress || c.NeedsOutgoing() }

// FiltersOutgoing reports whether outgoing packets are filtered on any interface.
func (c *Config) FiltersOutgoing() bool {
	return slices.ContainsFunc(c.Interfaces, c.Sends)
}

// checkRanges adds an error for each number that is not within the tags min and
// max. Sections and numbers that may be left out are not checked when they are.
func checkRanges(errs *quantity.FieldErrors, path string, v reflect.Value) {
	for _, f := range fields(v.Type()) {
		fv, at := v.FieldByIndex(f.index), Join(path, f.name)
		switch {
		case f.omitEmpty && fv.IsZero():
		case f.min != "":
			least, _ := strconv.ParseFloat(f.min, 64) // TestSchema parses them
			most, _ := strconv.ParseFloat(f.max, 64)
			var x float64
			if fv.CanInt() {
				x = float64(fv.Int())
			} else {
				x = fv.Float()
			}
			if !(x >= least && x <= most) { // nor NaN
				errs.Failf(at, "%v is not between %s and %s", fv, f.min, f.max)
			}
		case fv.Kind() == reflect.Struct && !isText(fv.Type()):
			checkRanges(errs, at, fv)
		case fv.Kind() == reflect.Slice && fv.Type().Elem().Kind() == reflect.Struct && !isText(fv.Type().Elem()):
			key, keyed := keyField(fv.Type().Elem())
			for i := range fv.Len() {
				element := fmt.Sprintf("%s[%d]", at, i)
				if keyed {
					element = Join(at, fv.Index(i).FieldByIndex(key.index).String())
				}
				checkRanges(errs, element, fv.Index(i))
			}
		}
	}
}

func (f Failsafe) check() (errs quantity.FieldErrors) {
	quantity.Unique(&errs, "ports", len(f.Ports), func(i int) any { return f.Ports[i] })
	if len(f.Ports) > verdict.MaxFailsafe {
		errs.Failf("ports", "there are %d: the maximum is %d", len(f.Ports), verdict.MaxFailsafe)
	}
	quantity.Unique(&errs, "prefixes", len(f.Prefixes), func(i int) any { return f.Prefixes[i] })
	quantity.Unique(&errs, "icmp", len(f.ICMP), func(i int) any { return f.ICMP[i] })
	v4 := 0
	for _, p := range f.Prefixes {
		if p.Addr().Is4() {
			v4++
		}
	}
	if v6 := len(f.Prefixes) - v4; max(v4, v6) > verdict.MaxFailsafe {
		errs.Failf("prefixes", "there are %d of IPv4 and %d of IPv6: the maximum of each is %d", v4, v6, verdict.MaxFailsafe)
	}
	return errs
}

func (t TLS) complete() bool { return t.Cert != "" && t.Key != "" && t.ClientCA != "" }

func (c Console) check(api Path) (errs quantity.FieldErrors) {
	switch {
	case c.TLS != TLS{} && !c.TLS.complete():
		errs.Failf("tls", "it needs cert, key and client_ca")
	case c.Listen != "" && c.TLS == TLS{} && !c.Listen.loopback():
		errs.Failf("listen", "%s is no address of a loopback interface, as 127.0.0.1:9479 is: others could reach it, which requires tls with cert, key and client_ca", c.Listen)
	}
	if c.Proxy != (ConsoleProxy{}) {
		errs.Add("proxy", c.Proxy.check(api).Err())
	}
	return errs
}

func (p ConsoleProxy) check(api Path) (errs quantity.FieldErrors) {
	switch {
	case !filepath.IsAbs(string(p.Socket)):
		errs.Failf("socket", "%q: want an absolute path", p.Socket)
	case filepath.Clean(string(p.Socket)) == filepath.Clean(string(api)):
		errs.Failf("socket", "%s is api.socket, whose users need no header: want another path", p.Socket)
	}
	if !headerName.MatchString(p.UserHeader) {
		errs.Failf("user_header", `%q: want the name of a header, such as X-Forwarded-User`, p.UserHeader)
	}
	return errs
}

// headerName matches the names of headers. Each that browsers set of a user's own accord, such
// as Cookie, has none of the hyphens that headers of proxies have.
var headerName = regexp.MustCompile(`^[A-Za-z0-9]{1,30}(-[A-Za-z0-9]{1,30}){1,4}$`)

func (a API) check() (errs quantity.FieldErrors) {
	switch {
	case a.Listen != "" && !a.TLS.complete():
		errs.Failf("listen", "it needs tls with cert, key and client_ca: a client that reaches the daemon controls the filter")
	case a.Listen == "" && a.TLS != TLS{}:
		errs.Failf("tls", "it is for listen, which is missing")
	}
	return errs
}

// Check returns what is wrong with a list.
func (l List) Check() error {
	errs := l.check()
	checkRanges(&errs, "", reflect.ValueOf(l))
	return errs.Err()
}

func (l List) check() (errs quantity.FieldErrors) {
	if !matchesName(l.Name) || len(l.Name) > maxName {
		errs.Failf("", `the name %q: want up to %d letters, digits, "_", "-" and inner dots`, l.Name, maxName)
		return errs
	}
	if l.Action == "" {
		errs.Failf("action", "say block or allow: the feed %s has the addresses of a provider, which some block and others must let in", l.FeedName)
	}
	if l.Format.Kind == feed.Names && l.Action == Block && l.Direction != engine.Out {
		errs.Failf("format", "names are for allow lists and for lists with direction out: the owner of a name chooses its addresses, and could have others blocked")
	}
	if l.TTL > 0 && len(l.All()) > 0 && l.TTL < l.Interval+l.Jitter {
		errs.Failf("ttl", "%v is less than interval and jitter: entries would expire between two fetches", l.TTL)
	}
	if !l.Enforce && l.Action == Allow {
		errs.Failf("enforce", "an allow list cannot be on trial, since it drops nothing: leave enforce out")
	}
	errs.Add("", l.checkDerived().Err())
	errs.Add("", l.Only.check().Err())
	errs.Add("", l.Spec.Validate())
	return errs
}

func checkCoverage(errs *quantity.FieldErrors, most quantity.Share) {
	if most == 0 {
		errs.Failf("max_coverage", "no list could have any entry")
	}
}

// checkFiles returns the errors in other files that would keep weir from starting.
func (c *Config) checkFiles() (errs quantity.FieldErrors) {
	for _, t := range c.Notify.Targets {
		errs.Add(Join("notify.targets", t.Name), t.ValidateFiles())
	}
	for _, e := range c.Export.Collectors {
		errs.Add(Join("export.collectors", e.Name), e.TLS.ValidateFiles())
	}
	for _, l := range c.Lists {
		for i, s := range l.Sources {
			errs.Add(Join("lists", l.Name)+fmt.Sprintf(".sources[%d]", i), s.ValidateFiles())
		}
	}
	c.CheckStageFiles(&errs)
	return errs
}

package feed

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/control/list/listfile"
	"weir/control/quantity"
)

// Spec says where the entries of a list come from, and when contents are refused.
// Use SetDefaults, or [DefaultSpec], before setting fields.
type Spec struct {
	// A known feed, from which the sources and what is not given here come: `weir feeds`
	// prints the names. Sources that are given, of a mirror say, replace its own.
	FeedName Name `yaml:"feed,omitempty"`

	// The form of the sources' contents: the name of a format, or a mapping.
	Format Format `yaml:"format"`

	// Mask host bits in prefixes instead of calling the line bad.
	Lenient bool `yaml:"lenient"`

	// Read an address with a port, as in 192.0.2.1:443 or MISP's 192.0.2.1|443, as the
	// address alone instead of calling the line bad.
	IgnorePorts bool `yaml:"ignore_ports,omitempty"`

	// Where entries come from. A list without sources has manual entries only.
	Sources []Source `yaml:"sources,omitempty"`

	// Entries that are written here, in the format of lists, beside those of sources: one
	// of the configuration's own sources.
	Entries []string `yaml:"entries,omitempty"`

	// How often sources are read. Default for crowdsec: 10s.
	Interval quantity.Duration `yaml:"interval"`

	// The maximum random delay added to each interval, so that not all hosts fetch
	// at once. Default for crowdsec: none.
	Jitter quantity.Duration `yaml:"jitter"`

	// The share of bad lines above which a source is refused.
	MaxBad quantity.Share `yaml:"max_bad"`

	// The share of its entries that a source may lose from one reading to the next;
	// if it loses more, the old contents stay.
	MaxShrink quantity.Share `yaml:"max_shrink"`

	// How many times the entries that it had a source may have after a reading, and
	// 10,000 more; if it has more, the old contents stay. 0: any number.
	MaxGrowth float64 `yaml:"max_growth" min:"0" max:"1000000"`
}

// The defaults of a Spec.
const (
	DefaultInterval = time.Hour
	DefaultJitter   = time.Minute

	// DefaultMaxShrink: real feeds change by some percent from one day to the
	// next; an interrupted job of its maker leaves half of one.
	DefaultMaxShrink = 0.5

	// DefaultMaxGrowth: a feed that becomes ten times as large has become another one.
	DefaultMaxGrowth = 10

	// growthSlack is the number of entries by which a source may grow in any case.
	growthSlack = 10_000
)

// SetDefaults sets all fields to their defaults.
func (s *Spec) SetDefaults() {
	*s = Spec{
		Interval: quantity.Duration(DefaultInterval), Jitter: quantity.Duration(DefaultJitter),
		MaxBad: listfile.DefaultMaxBad, MaxShrink: DefaultMaxShrink, MaxGrowth: DefaultMaxGrowth,
	}
}

// Complete sets the defaults that depend on other fields, where those of their names
// are not given.
func (s *Spec) Complete(given func(name string) bool) {
	if k, ok := s.FeedName.Known(); ok {
		k.complete(s, given)
	}
	if s.Format.Kind != CrowdSec {
		return
	}
	if !given("interval") {
		s.Interval = quantity.Duration(DefaultCrowdSecInterval)
	}
	if !given("jitter") {
		s.Jitter = 0
	}
}

// DefaultSpec returns a Spec of sources with the defaults. Limits of sources that
// are 0 are set to their defaults, too.
func DefaultSpec(sources ...Source) Spec {
	var s Spec
	s.SetDefaults()
	for _, src := range sources {
		limits := src
		limits.SetDefaults()
		if src.Timeout == 0 {
			src.Timeout = limits.Timeout
		}
		if src.MaxBytes == 0 {
			src.MaxBytes = limits.MaxBytes
		}
		if src.MaxCPU == 0 {
			src.MaxCPU = limits.MaxCPU
		}
		s.Sources = append(s.Sources, src)
	}
	return s
}

// All returns the sources, with one of the entries that are written in the configuration.
func (s Spec) All() []Source {
	if len(s.Entries) == 0 {
		return s.Sources
	}
	written := Source{written: s.Entries}
	written.SetDefaults()
	return append(slices.Clone(s.Sources), written)
}

// SourceNames returns the names that outcomes have for the sources of All.
func (s Spec) SourceNames() []string {
	var names []string
	for _, src := range s.All() {
		names = append(names, src.String())
	}
	return quantity.Distinct(names) // URLs may differ in their queries only
}

// validateEntries adds what is wrong with the entries that are written in the configuration.
func (s Spec) validateEntries(errs *quantity.FieldErrors) {
	if s.Format.Kind == CrowdSec && len(s.Entries) > 0 {
		errs.Failf("entries", "a list of CrowdSec's decisions has no others: name another list for these")
		return
	}
	o := listfile.Options{Lenient: s.Lenient, IgnorePorts: s.IgnorePorts}
	first := make(map[string]int)
	for i, e := range s.Entries {
		field := fmt.Sprintf("entries[%d]", i)
		if j, twice := first[e]; twice {
			errs.Failf(field, "the same as entries[%d]", j)
			continue
		}
		first[e] = i
		if strings.ContainsAny(e, "\r\n") {
			errs.Failf(field, "%q has several lines: write each as an entry of its own", e)
		} else if s.Format.Kind == ASNs {
			if err := new(ASN).UnmarshalText([]byte(e)); err != nil {
				errs.Failf(field, "%w", err)
			}
		} else if s.Format.Kind == Names {
			if l, err := parseNameLine(1, e); err != nil {
				errs.Failf(field, "%w", err)
			} else if l == nil {
				errs.Failf(field, "%q: no entry", e)
			}
		} else if _, err := o.ParseEntry(e); err != nil {
			errs.Failf(field, "%q: %w", e, err)
		}
	}
}

// fetches reports whether the spec has a URL of the feed itself.
func (s Spec) fetches(k Known) bool {
	return slices.ContainsFunc(s.Sources, func(src Source) bool { return slices.Contains(k.URLs, src.URL) })
}

// Validate returns what is wrong with a Spec as [quantity.FieldErrors].
func (s Spec) Validate() error {
	var errs quantity.FieldErrors
	const most = quantity.Duration(30 * 24 * time.Hour)
	quantity.Between(&errs, "interval", s.Interval, quantity.Duration(time.Second), most)
	if k, _ := s.FeedName.Known(); s.Interval < quantity.Duration(k.Least) && s.fetches(k) {
		errs.Failf("interval", "%v is less than the %v that feed %s asks for", s.Interval, quantity.Duration(k.Least), k.Name)
	}
	quantity.Between(&errs, "jitter", s.Jitter, 0, most)
	quantity.Between(&errs, "max_bad", s.MaxBad, 0, 1)
	quantity.Between(&errs, "max_shrink", s.MaxShrink, 0, 1)
	if g := s.MaxGrowth; !(g == 0 || g >= 1 && g <= 1e6) {
		errs.Failf("max_growth", "%v is neither 0 nor between 1 and 1000000", g)
	}
	if err := s.Format.Validate(); err != nil {
		errs.Failf("format", "%w", err)
		return errs.Err() // what sources may have depends on it
	}
	s.validateEntries(&errs)
	first := make(map[[3]string]int)
	for i, src := range s.Sources {
		field := fmt.Sprintf("sources[%d]", i)
		if err := src.validate(s.Format.Kind); err != nil {
			errs.Failf(field, "%w", err)
		}
		place := [3]string{string(src.File), string(src.Directory), string(src.URL)}
		if j, twice := first[place]; twice {
			errs.Failf(field, "the same as sources[%d]", j)
			continue
		}
		first[place] = i
	}
	return errs.Err()
}

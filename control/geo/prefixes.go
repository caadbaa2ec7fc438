package geo

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/oschwald/maxminddb-golang/v2"
)

// Record is the part of a database's record that selects networks.
type Record struct {
	Country string // the ISO code; "": unknown
	ASN     uint32 // 0: unknown
}

// aliases is how many times the networks of IPv4 may be in a database: as such, and where
// IPv6 repeats them.
const aliases = 3

// ErrTooMany means that a database has more prefixes than it may.
var ErrTooMany = errors.New("too many prefixes")

// checkEvery is the number of networks between two calls of check.
const checkEvery = 4096

// The networks that are visited. Others have no place on the Internet, or repeat IPv4.
var (
	allIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	unicast = netip.MustParsePrefix("2000::/3")
	repeats = []netip.Prefix{netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16")}
)

// Prefixes returns the fewest prefixes that cover the networks whose records want returns
// true for, IPv4 before IPv6, of a database in MaxMind's format. It calls check from time
// to time, and ends with its error. Where there are more than most, it fails; 0: no limit.
func Prefixes(contents []byte, want func(Record) bool, most int, check func() error) ([]netip.Prefix, error) {
	w := walk{want: want, check: check}
	wanted := make(map[uintptr]bool) // by the offset of the record
	var all []netip.Prefix
	err := w.each(contents, func(p netip.Prefix, offset uintptr, record func() (Record, error)) error {
		is, known := wanted[offset]
		if !known {
			r, err := record()
			if err != nil {
				return err
			}
			is = w.want(r)
			const most = 1 << 20 // records that are remembered, some 40 MB
			if len(wanted) < most {
				wanted[offset] = is
			}
		}
		if is {
			all = join(all, p)
		}
		if most > 0 && len(all) > most {
			return fmt.Errorf("%w: more than %d", ErrTooMany, most)
		}
		return nil
	})
	return all, err
}

// Each calls visit with each network of a database in MaxMind's format, IPv4 before IPv6. It
// calls check from time to time, and ends with its error.
func Each(contents []byte, visit func(netip.Prefix, Record), check func() error) error {
	return walk{check: check}.each(contents, func(p netip.Prefix, _ uintptr, record func() (Record, error)) error {
		r, err := record()
		if err == nil {
			visit(p, r)
		}
		return err
	})
}

// walk visits networks in the order of their addresses.
type walk struct {
	want  func(Record) bool
	check func() error
}

// visitor is called with a network, the offset of its record, and a function that reads it.
type visitor func(p netip.Prefix, offset uintptr, record func() (Record, error)) error

func (w walk) each(contents []byte, visit visitor) (err error) {
	defer recovered(&err)
	r, err := maxminddb.OpenBytes(contents)
	if err != nil {
		return fmt.Errorf("want a database in MaxMind's format (.mmdb): %w", err)
	}
	visited := 0
	if err := w.within(r, allIPv4, &visited, visit); err != nil || r.Metadata.IPVersion == 4 {
		return err
	}
	return w.within(r, unicast, &visited, visit)
}

func (w walk) within(r *maxminddb.Reader, p netip.Prefix, visited *int, visit visitor) error {
	// Without these options there are networks that are skipped without a look at check.
	for n := range r.NetworksWithin(p, maxminddb.IncludeNetworksWithoutData(), maxminddb.IncludeAliasedNetworks()) {
		*visited++
		if *visited%checkEvery == 0 {
			if err := w.check(); err != nil {
				return err
			}
		}
		// A tree has at most two networks a node. One that has more is a graph: of a kilobyte,
		// 2^128 networks.
		if nodes := int(r.Metadata.NodeCount); *visited > 2*aliases*nodes+1 {
			return fmt.Errorf("more than %d networks in %d nodes: the search tree leads to one of them in several ways, so that the file is damaged or hostile: fetch it again", *visited-1, nodes)
		}
		if n.Err() != nil {
			return n.Err()
		}
		if !n.Found() || repeated(n.Prefix()) {
			continue
		}
		if err := visit(n.Prefix().Masked(), n.Offset(), func() (Record, error) { return recordOf(&n) }); err != nil {
			return fmt.Errorf("%v: %w", n.Prefix(), err)
		}
	}
	return nil
}

func repeated(p netip.Prefix) bool {
	for _, r := range repeats {
		if r.Overlaps(p) && r.Bits() <= p.Bits() {
			return true
		}
	}
	return false
}

// join adds a prefix after those before it, and joins the two halves of another one.
func join(all []netip.Prefix, p netip.Prefix) []netip.Prefix {
	for len(all) > 0 && p.Bits() > 0 {
		last := all[len(all)-1]
		both := netip.PrefixFrom(last.Addr(), p.Bits()-1).Masked()
		if last.Bits() != p.Bits() || last == p || last.Addr().Is4() != p.Addr().Is4() || !both.Contains(p.Addr()) {
			break
		}
		all = all[:len(all)-1]
		p = both
	}
	return append(all, p)
}

// Lookup returns the record of an address.
func Lookup(contents []byte, a netip.Addr) (record Record, err error) {
	defer recovered(&err)
	r, err := maxminddb.OpenBytes(contents)
	if err != nil {
		return Record{}, err
	}
	if a.Is6() && r.Metadata.IPVersion == 4 {
		return Record{}, nil
	}
	n := r.Lookup(a)
	if n.Err() != nil || !n.Found() {
		return Record{}, n.Err()
	}
	return recordOf(&n)
}

// recordOf reads a record in the forms of MaxMind, DB-IP, IPinfo and IPLocate.
func recordOf(r *maxminddb.Result) (Record, error) {
	var v struct {
		Country     any    `maxminddb:"country"` // {iso_code: DE}, or the code itself
		CountryCode string `maxminddb:"country_code"`
		Number      uint32 `maxminddb:"autonomous_system_number"`
		ASN         any    `maxminddb:"asn"` // AS64496, or the number itself
	}
	if err := r.Decode(&v); err != nil {
		return Record{}, err
	}
	record := Record{Country: v.CountryCode, ASN: v.Number}
	if record.Country == "" {
		switch c := v.Country.(type) {
		case string:
			record.Country = c
		case map[string]any:
			record.Country, _ = c["iso_code"].(string)
		}
	}
	if record.ASN == 0 {
		text := strings.TrimPrefix(fmt.Sprint(v.ASN), "AS")
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			record.ASN = uint32(n)
		}
	}
	return record, nil
}

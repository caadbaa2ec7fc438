package geo

import (
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

// maxNetworks bounds the networks of a database that are visited. The largest databases
// have some ten million; a hostile one of a kilobyte can have 2^128.
const maxNetworks = 32 << 20

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
// to time, and ends with its error.
func Prefixes(contents []byte, want func(Record) bool, check func() error) ([]netip.Prefix, error) {
	return prefixes(contents, walk{want: want, check: check, most: maxNetworks})
}

func prefixes(contents []byte, w walk) (all []netip.Prefix, err error) {
	defer recovered(&err)
	r, err := maxminddb.OpenBytes(contents)
	if err != nil {
		return nil, fmt.Errorf("want a database in MaxMind's format (.mmdb): %w", err)
	}
	w.known = make(map[uintptr]bool)
	if err := w.within(r, allIPv4); err != nil {
		return nil, err
	}
	if r.Metadata.IPVersion != 4 {
		if err := w.within(r, unicast); err != nil {
			return nil, err
		}
	}
	return w.all, nil
}

// walk collects networks in the order of their addresses.
type walk struct {
	want    func(Record) bool
	check   func() error
	most    int              // networks
	known   map[uintptr]bool // by the offset of the record
	visited int
	all     []netip.Prefix
}

func (w *walk) within(r *maxminddb.Reader, p netip.Prefix) error {
	// Without these options there are networks that are skipped without a look at check.
	for n := range r.NetworksWithin(p, maxminddb.IncludeNetworksWithoutData(), maxminddb.IncludeAliasedNetworks()) {
		w.visited++
		if w.visited%checkEvery == 0 {
			if err := w.check(); err != nil {
				return err
			}
		}
		if w.visited > w.most {
			return fmt.Errorf("more than %d networks", w.most)
		}
		if n.Err() != nil {
			return n.Err()
		}
		if !n.Found() {
			continue
		}
		wanted, known := w.known[n.Offset()]
		if !known {
			record, err := recordOf(&n)
			if err != nil {
				return fmt.Errorf("%v: %w", n.Prefix(), err)
			}
			wanted = w.want(record)
			const most = 1 << 20 // records that are remembered, some 40 MB
			if len(w.known) < most {
				w.known[n.Offset()] = wanted
			}
		}
		if wanted && !repeated(n.Prefix()) {
			w.add(n.Prefix().Masked())
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

// add adds a prefix, and joins the two halves of another one.
func (w *walk) add(p netip.Prefix) {
	for len(w.all) > 0 && p.Bits() > 0 {
		last := w.all[len(w.all)-1]
		both := netip.PrefixFrom(last.Addr(), p.Bits()-1).Masked()
		if last.Bits() != p.Bits() || last == p || last.Addr().Is4() != p.Addr().Is4() || !both.Contains(p.Addr()) {
			break
		}
		w.all = w.all[:len(w.all)-1]
		p = both
	}
	w.all = append(w.all, p)
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

package feed

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"weir/control/compressed"
	"weir/control/list"
	"weir/control/list/listfile"
)

// Kind is a kind of format.
type Kind uint8

const (
	Plain     Kind = iota // weir's list format, of package list, including netsets
	CSV                   // comma-separated values, one column of which is read
	JSON                  // one or several documents
	JSONLines             // one document per line
	Spamhaus              // the JSON form of Spamhaus DROP, with its closing record
	CrowdSec              // the decision stream of CrowdSec's local API
	NFTables              // the output of "nft list set" or "nft list ruleset", with -j, too
	IPSet                 // the output of "ipset save"
	P2P                   // PeerGuardian's text: name:first-last
	DAT                   // ipfilter.dat: first - last , level , name
	Hosts                 // hosts(5), without the host's own addresses
	Deny                  // the "Deny from" and "Require not ip" of Apache, the "deny" of nginx
	MMDB                  // a database in MaxMind's format, of countries or autonomous systems
	Names                 // names of hosts, which are resolved
	ASNs                  // autonomous systems, whose networks are in a database
	STIX                  // indicators of STIX 2.1
	TAXII                 // a collection of TAXII 2.1, of STIX
)

var kindNames = []string{"plain", "csv", "json", "jsonl", "spamhaus", "crowdsec", "nftables", "ipset", "p2p", "dat", "hosts", "deny", "mmdb", "names", "asns", "stix", "taxii"}

// Kinds returns the names of all kinds.
func Kinds() []string { return slices.Clone(kindNames) }

func (k Kind) String() string { return kindNames[k] }

// MarshalText returns the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText sets the kind by its name, or by the short one of nftables.
func (k *Kind) UnmarshalText(text []byte) error {
	if string(text) == "nft" {
		*k = NFTables
		return nil
	}
	i := slices.Index(kindNames, string(text))
	if i < 0 {
		last := len(kindNames) - 1
		return fmt.Errorf("unknown format %q: want %s or %s", text, strings.Join(kindNames[:last], ", "), kindNames[last])
	}
	*k = Kind(i)
	return nil
}

// Format is the form of a source's contents: in YAML its kind, or a mapping. The
// zero Format is weir's list format.
type Format struct {
	// plain (an entry a line; netsets, too), csv, json, jsonl (JSON, a document a
	// line), spamhaus (DROP as JSON), crowdsec (the decision stream of its API),
	// nftables or ipset (what they save; of nft also JSON), p2p (PeerGuardian), dat
	// (ipfilter.dat), hosts (hosts files, without the host's own addresses), deny (of
	// Apache or nginx), mmdb (a database of countries or autonomous systems in MaxMind's
	// format) or names (of hosts, resolved again and again, for allow lists and lists of
	// direction out), asns (autonomous systems, whose networks a database has), stix (the
	// addresses in indicators of STIX 2.1) or taxii (a collection of these).
	Kind Kind `yaml:"kind,short"`

	// For csv, the column of the address, prefix or range: its name in the first
	// record, or its number from 1.
	Column string `yaml:"column,omitempty"`

	// For csv with ranges in two columns, the column of their ends.
	LastColumn string `yaml:"last_column,omitempty"`

	// For csv, the character between columns. Default: a comma.
	Separator Separator `yaml:"separator,omitempty"`

	// For json and jsonl, where the entries are, as in .data[].ip; several paths are
	// joined by commas. Brackets may have conditions, as in .prefixes[service=EC2].ip_prefix.
	Path string `yaml:"path,omitempty"`

	// For nftables and ipset, the names of the sets to read. Default: the only set
	// of addresses.
	Sets []string `yaml:"sets,omitempty"`

	// For asns, the database of autonomous systems in MaxMind's format (.mmdb).
	Database Path `yaml:"database,omitempty"`

	// For mmdb, the countries whose networks to read, as in [CN, RU].
	Countries []Country `yaml:"countries,omitempty"`

	// For mmdb, the countries whose networks not to read: those of all others are.
	Except []Country `yaml:"except,omitempty"`

	// For mmdb, the autonomous systems whose networks to read, as in [AS64496].
	ASNs []ASN `yaml:"asns,omitempty"`
}

// ParseFormat returns a format from its text, as flags have it: the kind, and options
// by the names that they have in YAML, as in "csv,column=2,separator=;". The value of
// an option ends before the next option, so that it may have commas itself, as in
// "json,path=.v4[].ip,.v6[].ip".
func ParseFormat(text string) (Format, error) {
	var f Format
	kind, rest, more := strings.Cut(text, ",")
	if err := f.Kind.UnmarshalText([]byte(kind)); err != nil {
		return Format{}, err
	}
	var set func(value string) error
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		name, value, named := strings.Cut(part, "=")
		if option := f.option(name); named && option != nil {
			set = option
		} else if value = part; set == nil {
			return Format{}, fmt.Errorf("format %s: unknown option %q: want column, last_column, separator, path, sets, countries, except, asns or database", kind, name)
		}
		if err := set(value); err != nil {
			return Format{}, fmt.Errorf("format %s: %w", kind, err)
		}
	}
	_, err := newReader(f)
	return f, err
}

// option returns the function that sets an option, or continues it, nil if there is
// none of that name.
func (f *Format) option(name string) func(value string) error {
	text := func(to *string) func(string) error {
		return func(value string) error {
			if *to != "" {
				value = *to + "," + value
			}
			*to = value
			return nil
		}
	}
	switch name {
	case "column":
		return text(&f.Column)
	case "last_column":
		return text(&f.LastColumn)
	case "path":
		return text(&f.Path)
	case "separator":
		return func(value string) error { return f.Separator.UnmarshalText([]byte(value)) }
	case "sets":
		return func(value string) error { f.Sets = append(f.Sets, value); return nil }
	case "database":
		return func(value string) error { return f.Database.UnmarshalText([]byte(value)) }
	case "countries":
		return adds(&f.Countries)
	case "except":
		return adds(&f.Except)
	case "asns":
		return adds(&f.ASNs)
	}
	return nil
}

// adds returns a function that adds the value of a text.
func adds[T any, P interface {
	*T
	UnmarshalText(text []byte) error
}](to *[]T) func(string) error {
	return func(text string) error {
		var v T
		if err := P(&v).UnmarshalText([]byte(text)); err != nil {
			return err
		}
		*to = append(*to, v)
		return nil
	}
}

// reader reads a format.
type reader struct {
	Format
	paths [][]step
}

func newReader(f Format) (*reader, error) {
	if int(f.Kind) >= len(kindNames) {
		return nil, fmt.Errorf("unknown format number %d", f.Kind)
	}
	kinds := func(kinds ...Kind) bool { return slices.Contains(kinds, f.Kind) }
	switch {
	case kinds(CSV) && f.Column == "":
		return nil, errors.New("format csv needs the column of the addresses, by name or number, as in {kind: csv, column: ip}")
	case !kinds(CSV) && f.Column != "":
		return nil, errors.New("a column goes with format csv only")
	case !kinds(CSV) && (f.LastColumn != "" || f.Separator != 0):
		return nil, errors.New("a last column and a separator go with format csv only")
	case kinds(JSON, JSONLines) && f.Path == "":
		return nil, fmt.Errorf(`format %v needs the path of the addresses, as in {kind: %[1]v, path: ".data[].ip"}`, f.Kind)
	case !kinds(JSON, JSONLines) && f.Path != "":
		return nil, errors.New("a path goes with formats json and jsonl only")
	case !kinds(NFTables, IPSet) && len(f.Sets) > 0:
		return nil, errors.New("sets go with formats nftables and ipset only")
	}
	if err := f.checkSelection(); err != nil {
		return nil, err
	}
	r := &reader{Format: f}
	if f.Path != "" {
		var err error
		if r.paths, err = parsePaths(f.Path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// seek is called with each line, by its number from 1, until it returns false.
type seek func(number int, l listfile.Line) bool

// read reads a file, which may be compressed. Decompressed, it may have *left
// bytes; read decrements the count.
func (f *reader) read(name string, src io.Reader, left *int64, o listfile.Options) (list.Entries, listfile.Report, error) {
	return f.scan(name, src, left, o, nil)
}

// scan is like read; with seek, it only calls that and returns no entries.
func (f *reader) scan(name string, src io.Reader, left *int64, o listfile.Options, seek seek) (list.Entries, listfile.Report, error) {
	none := listfile.Report{File: name}
	shift := o.Work.Begin()
	in, _ := src.(*input)
	in.In(shift)
	end := sync.OnceFunc(func() {
		in.In(nil)
		shift.End()
	})
	defer end()
	text, err := compressed.NewReader(src)
	if err != nil {
		return list.Entries{}, none, err
	}
	defer text.Close()
	limited := limit{r: text, left: left, work: o.Work, shift: shift, in: in}
	if f.Kind == MMDB {
		return f.mmdb(name, limited, o, shift)
	}
	if err := f.checkStart(name, text, o); err != nil {
		return list.Entries{}, none, err
	}
	if in != nil && in.html && f.Kind != Deny {
		limited.tags = new(tags)
	}
	if f.Kind == Plain && seek != nil {
		for l, err := range listfile.ScanReader(name, limited, o) {
			if err != nil || !seek(l.Number, l) {
				return list.Entries{}, none, err
			}
		}
		return list.Entries{}, none, nil
	}
	if f.Kind == Plain || f.Kind == CrowdSec {
		end() // listfile.Parse begins its own
		limited.shift = nil
		return listfile.Parse(name, limited, o)
	}
	const mark = "\ufeff"
	if begin, _ := text.Peek(len(mark)); string(begin) == mark {
		_, _ = text.Discard(len(mark)) // cannot fail, it was peeked
	}
	c := &collector{report: none, options: o, text: lines{r: limited, most: o.MaxLines}, seek: seek}
	return c.finish(f.collect(c))
}

// collect reads a text whose values a collector takes.
func (f *reader) collect(c *collector) error {
	switch f.Kind {
	case CSV:
		return f.csv(c)
	case JSON:
		return f.json(c)
	case JSONLines:
		return f.jsonLines(c)
	case Spamhaus:
		return spamhaus(c)
	case NFTables:
		return f.nftables(c)
	case IPSet:
		return f.ipset(c)
	case P2P:
		return p2p(c)
	case DAT:
		return dat(c)
	case Hosts:
		return hosts(c)
	case Deny:
		return deny(c)
	case STIX, TAXII:
		return stix(c)
	}
	return nil
}

// checkStart refuses a text by its first bytes.
func (f *reader) checkStart(name string, text peeker, o listfile.Options) error {
	if begin, _ := text.Peek(4); isCompressed(begin) {
		return errors.New("compressed twice")
	}
	if begin, _ := text.Peek(pageStart); !o.ToEnd && f.Kind != Deny && isPage(begin) { // deny has sections
		return fmt.Errorf("%s: %w", name, errPage)
	}
	return nil
}

type peeker interface{ Peek(n int) ([]byte, error) }

// isCompressed recognises gzip and zstd streams by their first bytes.
func isCompressed(begin []byte) bool {
	return bytes.HasPrefix(begin, []byte{0x1f, 0x8b}) || bytes.HasPrefix(begin, []byte{0x28, 0xb5, 0x2f, 0xfd})
}

// limit reads r and fails if it has more bytes than allowed.
type limit struct {
	r     io.Reader
	left  *int64
	work  *listfile.Work
	shift *listfile.Shift // nil: the reader of the limit has it
	tags  *tags           // of a page served as HTML; nil: none are looked for
	in    *input          // below r; nil: something else is
}

// In lets the input count the time of a shift.
func (l limit) In(s *listfile.Shift) { l.in.In(s) }

func (l limit) Read(p []byte) (int, error) {
	if err := cmp.Or(l.shift.Check(), l.work.Err()); err != nil {
		return 0, err
	}
	n, err := l.r.Read(p)
	if *l.left -= int64(n); *l.left < 0 {
		return 0, fail(TooLarge, "decompressed to more bytes than max_bytes allows")
	}
	if l.tags != nil && l.tags.in(p[:n]) {
		return 0, errPage
	}
	return n, err
}

package feed

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir/control/compressed"
	"weir/control/list"
	"weir/control/list/listfile"
)

// Kind is the name of a format; "" is weir's list format.
type Kind string

// The formats that other code names; the table has all.
const (
	Plain     Kind = ""
	CSV       Kind = "csv"
	JSON      Kind = "json"
	JSONLines Kind = "jsonl"
	Spamhaus  Kind = "spamhaus"
	CrowdSec  Kind = "crowdsec"
	NFTables  Kind = "nftables"
	IPSet     Kind = "ipset"
	Deny      Kind = "deny"
	MMDB      Kind = "mmdb"
	Names     Kind = "names"
	ASNs      Kind = "asns"
	STIX      Kind = "stix"
	TAXII     Kind = "taxii"
)

// Description says what a format is.
type Description struct {
	Name    string
	About   string   // in a few words
	Grammar string   // what is an entry, a remark, left out and bad, in Markdown
	Example string   // with the options that it needs, as in YAML
	Options []string // those that it has, by their names in YAML
	File    bool     // any file may have it: the daemon is not needed to read it
}

// format is a row of the table of formats: names, help, schema, checks and documentation
// derive from it.
type format struct {
	Description
	short string   // another name
	needs []string // options one of which must be given

	// read reads a text. Without it, only the daemon reads the format, and makes a list in
	// weir's own of it.
	read func(*reader, *collector) error

	// whole reads instead of that what is not text.
	whole func(f *reader, name string, src io.Reader, o listfile.Options, shift *listfile.Shift) (list.Entries, listfile.Report, error)

	list  bool // it is weir's own
	tags  bool // the text may have tags like those of HTML
	api   bool // the source is the URL of an API
	made  bool // contents are made from the text and something else, and saved in the list format, with reasons
	timed bool // contents depend on the time when the source is read
}

// formats is the table. Each row is beside its reader.
var formats = []*format{
	&plainFormat, &csvFormat, &jsonFormat, &jsonLinesFormat, &spamhausFormat, &crowdSecFormat, &nftablesFormat, &ipsetFormat,
	&p2pFormat, &datFormat, &hostsFormat, &denyFormat, &iptablesFormat, &geoFormat, &mmdbFormat, &namesFormat, &asnsFormat, &stixFormat, &taxiiFormat,
}

var plainFormat = format{
	Description: Description{
		Name: "plain", Example: "plain", About: "weir's own format; netsets of FireHOL and similar files, too",
		Grammar: "An entry a line, as above.",
	},
	list: true,
}

// Formats describes all formats.
func Formats() []Description {
	var all []Description
	for _, f := range formats {
		d := f.Description
		d.File = f.isFile()
		all = append(all, d)
	}
	return all
}

// isFile reports whether any program can read the format.
func (f *format) isFile() bool { return f.list || f.read != nil || f.whole != nil }

// row returns the format's row of the table, nil if there is no such format.
func (k Kind) row() *format {
	for _, f := range formats {
		if f.Name == k.String() {
			return f
		}
	}
	return nil
}

func (k Kind) String() string { return cmp.Or(string(k), plainFormat.Name) }

// MarshalText returns the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText sets the kind by a name of the format.
func (k *Kind) UnmarshalText(text []byte) error {
	var names []string
	for _, f := range formats {
		if names = append(names, f.Name); string(text) == f.Name || f.short != "" && string(text) == f.short {
			if *k = Kind(f.Name); f == &plainFormat {
				*k = Plain
			}
			return nil
		}
	}
	return fmt.Errorf("unknown format %q: want %s", text, oneOf(names))
}

// oneOf returns names as in "a, b or c".
func oneOf(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Format is the form of a source's contents: in YAML its kind, or a mapping. The
// zero Format is weir's list format.
type Format struct {
	// The name of a format.
	Kind Kind `yaml:"kind,short"`

	// The column of the address, prefix or range: its name in the first record, or its
	// number from 1.
	Column string `yaml:"column,omitempty"`

	// With ranges in two columns, the column of their ends.
	LastColumn string `yaml:"last_column,omitempty"`

	// The column of the prefix length, or of the netmask; none: that of another column does not matter.
	MaskColumn string `yaml:"mask_column,omitempty"`

	// The column of the number of addresses from the first on; of IPv6, that of a prefix length.
	CountColumn string `yaml:"count_column,omitempty"`

	// The values that other columns must have, by name or number, as in cc=FR&type=ipv4.
	Only string `yaml:"only,omitempty"`

	// Read numbers, as in 3221225985, as addresses.
	Integers bool `yaml:"integers,omitempty"`

	// The character between columns. Default: a comma.
	Separator Separator `yaml:"separator,omitempty"`

	// Where the entries are, as in .data[].ip; several paths are joined by commas.
	// Brackets may have conditions, as in .prefixes[service=EC2].ip_prefix.
	Path string `yaml:"path,omitempty"`

	// The names of the sets to read. Default: the only set of addresses.
	Sets []string `yaml:"sets,omitempty"`

	// The types of indicators to read, as in [malicious-activity]. Default: all but benign.
	Types []string `yaml:"types,omitempty"`

	// The least confidence of indicators to read.
	MinConfidence int `yaml:"min_confidence,omitempty" min:"0" max:"100"`

	// The database of autonomous systems in MaxMind's format (.mmdb).
	Database Path `yaml:"database,omitempty"`

	// The countries whose networks to read, as in [CN, RU].
	Countries []Country `yaml:"countries,omitempty"`

	// The countries whose networks not to read: those of all others are.
	Except []Country `yaml:"except,omitempty"`

	// The autonomous systems whose networks to read, as in [AS64496].
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
	options := f.options()
	var to reflect.Value
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		name, value, named := strings.Cut(part, "=")
		if i := slices.IndexFunc(options, func(o option) bool { return o.name == name }); named && i >= 0 {
			to = options[i].value
		} else if value = part; !to.IsValid() {
			want := "none"
			if has := f.Kind.row().Options; len(has) > 0 {
				want = oneOf(has)
			}
			return Format{}, fmt.Errorf("format %s: unknown option %q: want %s", kind, name, want)
		}
		if err := addOption(to, value); err != nil {
			return Format{}, fmt.Errorf("format %s: %w", kind, err)
		}
	}
	return f, f.Validate()
}

// option is an option of a format, by its name in YAML.
type option struct {
	name  string
	value reflect.Value
}

// options returns the options of all formats.
func (f *Format) options() []option {
	var all []option
	v := reflect.ValueOf(f).Elem()
	for i := 1; i < v.NumField(); i++ { // the first is the kind
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		all = append(all, option{name, v.Field(i)})
	}
	return all
}

// addOption sets an option to a value, or adds the value to those that it has.
func addOption(to reflect.Value, value string) error {
	if to.Kind() == reflect.Slice {
		element := reflect.New(to.Type().Elem()).Elem()
		err := addOption(element, value)
		to.Set(reflect.Append(to, element))
		return err
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](to.Addr()); ok {
		return u.UnmarshalText([]byte(value))
	}
	if to.Kind() == reflect.Bool {
		yes, err := strconv.ParseBool(value)
		to.SetBool(yes)
		return err
	}
	if to.Kind() == reflect.Int {
		n, err := strconv.Atoi(value)
		to.SetInt(int64(n))
		return err
	}
	if to.String() != "" {
		value = to.String() + "," + value
	}
	to.SetString(value)
	return nil
}

// String returns the format as ParseFormat reads it.
func (f Format) String() string {
	var b strings.Builder
	b.WriteString(f.Kind.String())
	for _, o := range f.options() {
		if !o.value.IsZero() {
			b.WriteString("," + o.name + "=" + optionText(o.value))
		}
	}
	return b.String()
}

func optionText(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		var all []string
		for _, element := range v.Seq2() {
			all = append(all, optionText(element))
		}
		return strings.Join(all, ",")
	}
	if m, ok := reflect.TypeAssert[encoding.TextMarshaler](v); ok {
		text, _ := m.MarshalText() // never fails
		return string(text)
	}
	return fmt.Sprint(v.Interface())
}

// reader reads a format.
type reader struct {
	Format
	paths [][]step
	only  []condition // of the columns of csv
}

// Validate returns what is wrong with a format's options.
func (f Format) Validate() error {
	_, err := newReader(f)
	return err
}

func newReader(f Format) (*reader, error) {
	row := f.Kind.row()
	if row == nil {
		return nil, fmt.Errorf("unknown format %q", string(f.Kind))
	}
	given := 0
	for _, o := range f.options() {
		switch {
		case o.value.IsZero():
		case !slices.Contains(row.Options, o.name):
			return nil, fmt.Errorf("%s goes with format %s only", o.name, oneOf(withOption(o.name)))
		case slices.Contains(row.needs, o.name):
			given++
		}
	}
	if len(row.needs) > 0 && given != 1 {
		return nil, fmt.Errorf("format %v needs %s, as in %s", f.Kind, oneOf(row.needs), row.Example)
	}
	if f.MinConfidence < 0 || f.MinConfidence > 100 {
		return nil, fmt.Errorf("min_confidence %d: want a number from 0 to 100", f.MinConfidence)
	}
	if further := f.LastColumn != "" && f.CountColumn != ""; further || f.MaskColumn != "" && f.MaskColumn != noColumn && f.LastColumn+f.CountColumn != "" {
		return nil, errors.New("want one of last_column, mask_column and count_column")
	}
	r := &reader{Format: f}
	var err error
	if r.only, err = parseConditions(f.Only); err != nil {
		return nil, err
	}
	if f.Path != "" {
		if r.paths, err = parsePaths(f.Path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// withOption returns the formats that have an option.
func withOption(name string) []string {
	var has []string
	for _, f := range formats {
		if slices.Contains(f.Options, name) {
			has = append(has, f.Name)
		}
	}
	return has
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
	row := f.Kind.row()
	if row.whole != nil {
		return row.whole(f, name, limited, o, shift)
	}
	if begin, _ := text.Peek(pageStart); !o.ToEnd && !row.tags && isPage(begin) {
		return list.Entries{}, none, fmt.Errorf("%s: %w", name, errPage)
	}
	if in != nil && in.html && !row.tags {
		limited.tags = new(tags)
	}
	if row.list && seek != nil {
		for l, err := range listfile.ScanReader(name, limited, o) {
			if err != nil || !seek(l.Number, l) {
				return list.Entries{}, none, err
			}
		}
		return list.Entries{}, none, nil
	}
	if row.list {
		end() // listfile.Parse begins its own
		limited.shift = nil
		return listfile.Parse(name, limited, o)
	}
	if !row.isFile() {
		return list.Entries{}, none, fmt.Errorf("format %v: only the daemon reads it, and `weir check` with a configuration", f.Kind)
	}
	const mark = "\ufeff"
	if begin, _ := text.Peek(len(mark)); string(begin) == mark {
		_, _ = text.Discard(len(mark)) // cannot fail, it was peeked
	}
	c := &collector{report: none, options: o, text: lines{r: limited, most: o.MaxLines}, seek: seek}
	return c.finish(row.read(f, c))
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

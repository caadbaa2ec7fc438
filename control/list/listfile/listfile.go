// Package listfile reads and writes weir's list format: text with one entry per line.
//
//	192.0.2.1                                      an address
//	198.51.100.0/24                                a prefix
//	203.0.113.5-203.0.113.80                       a range, both ends included
//	2001:db8::/32                                  and the same in IPv6
//	tcp 192.0.2.1:* > 198.51.100.7:443             a flow
//	udp *:* > 198.51.100.0/24:53                   with prefixes, any address, any port
//	tcp *:* > 198.51.100.7:8000-8010               with a range of ports
//	tcp [2001:db8::/32]:* > [2001:db8:1::7]:443    IPv6 in brackets
//	> 198.51.100.7                                 a destination alone
//
// Comments run from "#" or ";" to the end of the line. Text separated from an
// entry by white space is a remark and ignored, so feeds with counts can be read
// unchanged, unless it may be a part of the entry. Blank lines, CRLF line ends, a UTF-8 byte order mark and a last
// line without an end are fine. Files may be compressed with gzip or zstd,
// recognised by their content.
//
// Addresses and prefixes are matched against source, destination or both, as
// the list's configuration says; flows and destinations state it themselves.
// The protocol of a flow is tcp, udp, sctp, icmp, icmp6, a number, or any; only
// tcp, udp, sctp and any have ports. "*" stands for any address or port. A flow
// with any address on both sides is listed for both families, and one with ranges of
// ports for each port: a line becomes at most 4096 entries.
//
// A packet on the wire is IPv4 or IPv6, so an IPv4-mapped IPv6 address or
// prefix (::ffff:192.0.2.1) means the IPv4 one. The block ::ffff:0:0/96 as a
// whole stays IPv6: IPv6 bogon lists contain it and do not mean all of IPv4.
//
// A bad line is reported and counted, and the good lines around it still count.
// A line that would be misunderstood in part is bad: host bits set in a prefix
// (unless [Options.Lenient]), octets with leading zeros, zones, an address with a
// port (unless [Options.IgnorePorts]), a second address among the first words of a
// remark, and a number behind a sign or a joining word, as in "192.0.2.4 - 10".
// A netmask is no second address: 192.0.2.0 255.255.255.0 and
// 192.0.2.0/255.255.255.0 are prefixes. Defanged addresses, such as 192[.]0[.]2[.]1,
// are read as what they stand for. A file with too
// many bad lines ([Options.MaxBad]), or one that cannot be read to its end, is
// rejected as a whole.
package listfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"weir/control/list"
)

// ErrTooManyBad means that a file was rejected for its contents. Any other
// error means that it could not be read.
var ErrTooManyBad = errors.New("too many bad lines")

// ErrTooManyEntries means that a file was rejected because it has more entries than
// [Options.MaxEntries].
var ErrTooManyEntries = errors.New("too many entries")

// ErrBinary means that a file was rejected because it has a byte that no text has.
var ErrBinary = errors.New("a NUL byte, as in an archive, a damaged file or UTF-16, but not in a list")

// DefaultMaxBad is the share of bad lines above which a file is rejected by
// default. Real feeds have up to 0.4 %; a file that is not a list, such as an
// error page or another format, has nearly 100 %.
const DefaultMaxBad = 0.05

// MaxErrors is the number of bad lines that a Report describes. Further ones
// are only counted.
const MaxErrors = 20

// Options control how a list is read. The zero Options suit a feed.
type Options struct {
	// Lenient masks the host bits of a prefix instead of rejecting the line.
	Lenient bool

	// IgnorePorts reads the address of 192.0.2.1:443, and of MISP's 192.0.2.1|443,
	// without its port, instead of rejecting the line.
	IgnorePorts bool

	// MaxBad is the share of bad lines, 0…1 of those that are neither blank nor
	// comment, above which the file is rejected. Zero means DefaultMaxBad; with
	// a negative number the first bad line rejects the file.
	MaxBad float64

	// MaxEntries is the number of entries above which the file is rejected, 0 for
	// no limit, by [list.Entries.Weight]. It counts the prefixes that ranges become: two
	// kilobytes, compressed, can be ranges of a million prefixes. It counts
	// duplicates, too, but neither equal lines in a row nor equal ranges of many
	// prefixes, which take no memory.
	MaxEntries int

	// MaxLines is the number of lines, with blank ones and comments, above which the
	// file is rejected, 0 for no limit: a kilobyte, compressed, can be a million.
	MaxLines int

	// ToEnd reads a file to its end, even if it has too many bad lines until then: as a
	// whole it was accepted before.
	ToEnd bool

	// Work, unless nil, is the work of which reading is a part.
	Work *Work

	// Size is the size of a stream in bytes, 0 if unknown. It is no bound: memory for the entries is planned by it.
	Size int64

	// Progress, unless nil, is called from time to time by the goroutine that
	// called Load or Parse, with the bytes read (before decompression) and the
	// file's size in bytes, 0 if unknown.
	Progress func(done, total int64)
}

// Report counts the lines of a file.
type Report struct {
	File   string
	Lines  int         // of a rejected file, those read until then
	Good   int         // lines with entries
	Bad    int         // lines that are neither good nor blank nor comment
	Errors []LineError // the first MaxErrors bad lines

	// Widest has the lines with the widest entries, of IPv4 and of IPv6, at most three each.
	Widest [2][]WideLine

	// LeftOut counts values that the grammar of the format leaves out, by reason.
	LeftOut map[string]int
}

// Skipped describes what was left out, and how often.
func (r Report) Skipped() []string {
	var all []string
	for _, reason := range slices.Sorted(maps.Keys(r.LeftOut)) {
		all = append(all, fmt.Sprintf("%s (%d)", reason, r.LeftOut[reason]))
	}
	return all
}

// maxWidest bounds the lines of [Report.Widest] of a family.
const maxWidest = 3

// Prefixes above these lengths are not counted: a list of them alone has too many for
// its widest to explain anything.
const narrowV4, narrowV6 = 24, 48

// WideLine is a line with entries that cover much.
type WideLine struct {
	File  string
	Line  int          // counted from 1
	Entry netip.Prefix // the widest: a range may be several
	Share float64      // of IPv4, or of 2000::/3, that all of them cover
}

func (w WideLine) String() string {
	return fmt.Sprintf("%s:%d: %v (%.3g %%)", w.File, w.Line, w.Entry, 100*w.Share)
}

// Suspect reports whether a line covers so much that it is probably a mistake: more than a /4 of
// IPv4, or a /16 of IPv6. Lists of bogons have multicast and reserved addresses as one prefix.
func (w WideLine) Suspect() bool {
	if w.Entry.Addr().Is6() {
		return w.Share > 0x1p-13 // of 2000::/3
	}
	return w.Share > 0x1p-4 && w.Entry != multicastReserved
}

var multicastReserved = netip.MustParsePrefix("224.0.0.0/3")

// widest keeps a line if it is one of the widest.
func (r *Report) widest(line WideLine) {
	if line.Share == 0 {
		return
	}
	all := &r.Widest[0]
	if line.Entry.Addr().Is6() {
		all = &r.Widest[1]
	}
	if same := slices.IndexFunc(*all, func(w WideLine) bool { return w.Line == line.Line }); same >= 0 {
		if (*all)[same].Share >= line.Share {
			return
		}
		*all = slices.Delete(*all, same, same+1)
	}
	*all = append(*all, line)
	slices.SortStableFunc(*all, func(a, b WideLine) int { return cmp.Compare(b.Share, a.Share) })
	*all = (*all)[:min(len(*all), maxWidest)]
}

// AddWidest adds the widest lines of another report, with other numbers.
func (r *Report) AddWidest(next Report, number func(int) int) {
	for _, family := range next.Widest {
		for _, w := range family {
			w.File, w.Line = r.File, number(w.Line)
			r.widest(w)
		}
	}
}

// LineError describes a bad line.
type LineError struct {
	File string
	Line int    // counted from 1
	Text string // the line, shortened
	Err  error
}

func (e LineError) Error() string {
	return fmt.Sprintf("%s:%d: %v: %q", e.File, e.Line, e.Err, e.Text)
}

func (e LineError) Unwrap() error { return e.Err }

// shorten shortens a line for an error message.
func shorten(s string) string {
	const most = 60 // bytes
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Load reads the file at path. If the file is rejected, the entries are empty
// and the report covers the lines read until then.
func Load(path string, o Options) (list.Entries, Report, error) {
	f, size, err := open(path)
	if err != nil {
		return list.Entries{}, Report{File: path}, err
	}
	defer f.Close()
	return collect(path, f, size, o, maxWorkers(), chunkLen)
}

// Parse is like [Load], for a stream, which it reads to its end; name is used
// in reports and errors.
func Parse(name string, r io.Reader, o Options) (list.Entries, Report, error) {
	return collect(name, r, o.Size, o, maxWorkers(), chunkLen)
}

// ParseEntry parses one line of a list. It fails on a blank line and on a
// comment.
func ParseEntry(text string) (list.Entries, error) { return Options{}.ParseEntry(text) }

// ParseEntry is like the function of that name, with the options of lines.
func (o Options) ParseEntry(text string) (list.Entries, error) {
	p := newParser(o)
	entry, err := p.line([]byte(text))
	if err == nil && !entry {
		err = errors.New("no entry")
	}
	return p.out, err
}

// Line is a good line of a file.
type Line struct {
	Number       int    // counted from 1
	Text         []byte // without the line end
	list.Entries        // the line's entries
}

// ScanReader iterates over the good lines of a stream, for finding the line of an entry; of o,
// only Lenient is used, and name in errors. A Line's slices are valid until the next
// iteration. If the stream cannot be read to its end, the last iteration yields the error
// with a zero Line.
func ScanReader(name string, r io.Reader, o Options) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		if err := scan(name, r, o, func(l Line) bool { return yield(l, nil) }); err != nil {
			yield(Line{}, err)
		}
	}
}

// open opens a file and returns its size, 0 if it is not a regular file.
func open(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	if !st.Mode().IsRegular() {
		return f, 0, nil
	}
	return f, st.Size(), nil
}

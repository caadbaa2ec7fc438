package feed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// Bounds of names.
const (
	maxNames       = 1000    // of a source
	maxNameBytes   = 1 << 20 // of a source's text
	maxAddresses   = 64      // of a name; others are left out
	lookups        = 8       // at a time
	leastTTL       = 30 * time.Second
	unknownTTL     = 5 * time.Minute // of a name in hosts, or whose answer came by TCP
	failedLookup   = time.Minute     // until a name that was not resolved is looked up again
	mostNameLength = 253

	// lookupTimeout is of a name. A resolver waits 5 seconds for each server, in their order,
	// by resolv.conf(5): two of the three that it may have can be silent.
	lookupTimeout = 12 * time.Second

	// lookupsTimeout is of all names. Within it, 88 are resolved where the first server is
	// silent; the others follow a minute later.
	lookupsTimeout = time.Minute
)

// lookup returns the addresses of a name in a family, ip4 or ip6, and how long they are valid,
// 0 if unknown.
type lookup func(ctx context.Context, network, name string) ([]netip.Addr, time.Duration, error)

// resolved has the addresses of a name, and the result of its last lookup.
type resolved struct {
	addresses []netip.Addr // sorted; the last good ones of each family
	until     time.Time    // when it is looked up again
	err       error        // of the last lookup, with what becomes of the addresses
}

// nameLine is a line of a list of names.
type nameLine struct {
	number int
	name   string // "": an address or a prefix
	text   string
}

// parseName returns the name in a line of text without its comment, with ok false if it is
// none.
func parseName(text string) (name string, ok bool) {
	name = strings.ToLower(strings.TrimSuffix(text, "."))
	if len(name) > mostNameLength || !strings.Contains(name, ".") {
		return "", false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || label[0] == '-' {
			return "", false
		}
	}
	return name, strings.Trim(name, "0123456789.") != "" // else a mistyped address
}

// parseNameLine returns a line's name, address or prefix, and nil for a blank line.
func parseNameLine(number int, text string) (*nameLine, error) {
	if text = withoutRemark(text); text == "" {
		return nil, nil
	}
	if name, ok := parseName(text); ok {
		return &nameLine{number, name, text}, nil
	}
	if _, err := (listfile.Options{}).ParseEntry(text); err != nil {
		return nil, fmt.Errorf("%.60q: want a name with a dot, as in home.example.org, or an address", text)
	}
	return &nameLine{number, "", text}, nil
}

// resolve returns a body in the list format, an address a line with its name as a comment,
// for a body of names, and what is to be reported of each part. A name that cannot be
// looked up keeps its last addresses, in each family. It looks up the names whose addresses are
// no longer valid, or all of them where that was requested, and returns when the next ones are not. Names from a URL that are much fewer than those
// of the active contents, nil for none, are refused unless they are accepted.
func (f *Feed) resolve(ctx context.Context, s *source, b *body, old *contents, accept bool) (*body, []listfile.Report, time.Duration, error) {
	var reports []listfile.Report
	var parts [][]nameLine
	wanted := make(map[string]*resolved)
	text := make(map[string]bool) // the lines of the list
	for _, p := range b.parts {
		lines, report, err := p.names()
		if err != nil {
			return nil, nil, 0, err
		}
		for _, l := range lines {
			if l.name == "" {
				text[l.text] = true
			} else if wanted[l.name] == nil {
				wanted[l.name] = &resolved{}
				if known := s.names[l.name]; known != nil {
					*wanted[l.name] = *known
				}
			}
		}
		if len(wanted) > maxNames {
			return nil, nil, 0, fail(TooLarge, "%s: more than %d names", s.name, maxNames)
		}
		parts, reports = append(parts, lines), append(reports, report)
	}
	made := *b
	made.names = len(wanted) + len(text)
	if s.URL != "" && !accept {
		if err := f.tooFewNames(made.names, old); err != nil {
			return nil, nil, 0, err
		}
	}
	s.lookUp(ctx, wanted, time.Duration(f.Interval))
	if ctx.Err() != nil {
		return nil, nil, 0, ctx.Err()
	}
	if len(wanted) > 0 { // else they may be refused, and the names come back
		s.names = wanted
	}
	made.resolved, made.taken = wanted, func() { s.names = wanted }
	for i, lines := range parts {
		for _, l := range lines {
			if l.name == "" {
				continue
			}
			r := wanted[l.name]
			for _, a := range r.addresses {
				text[a.String()+" # "+l.name] = true
			}
			if r.err != nil {
				addBad(&reports[i], l.number, l.name, r.err)
			}
		}
	}
	if len(text) == 0 && len(wanted) > 0 {
		for _, r := range wanted {
			return nil, nil, 0, fail(Unreachable, "%s: no name can be resolved: %w", s.name, r.err)
		}
	}
	var all bytes.Buffer
	for _, line := range slices.Sorted(maps.Keys(text)) {
		all.WriteString(line + "\n")
	}
	next := time.Duration(0)
	for _, r := range wanted {
		if left := max(time.Until(r.until), time.Second); next == 0 || left < next {
			next = left
		}
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(all.Bytes())), nil }
	made.parts, made.validator = []part{{s.name, open}}, validator{}
	return &made, reports, next, nil
}

// tooFewNames refuses a number of names that is much smaller than in the active contents,
// nil for none. Contents without any are refused as empty.
func (f *Feed) tooFewNames(n int, old *contents) error {
	if old == nil || n == 0 || float64(old.Names-n) <= float64(f.MaxShrink)*float64(old.Names) {
		return nil
	}
	return fail(Shrunk, "%d names and other entries, down from %d: more than %g%% removed (refresh --accept or a larger max_shrink accepts it)",
		n, old.Names, 100*float64(f.MaxShrink))
}

// addBad counts a bad line, and describes it unless the report has enough of them.
func addBad(r *listfile.Report, line int, text string, err error) {
	r.Bad++
	if len(r.Errors) < listfile.MaxErrors {
		r.Errors = append(r.Errors, listfile.LineError{File: r.File, Line: line, Text: text, Err: err})
	}
}

// withoutRemark returns a line's text before a remark.
func withoutRemark(line string) string {
	if i := strings.IndexAny(line, "#;"); i >= 0 {
		line = line[:i]
	}
	return strings.TrimSpace(line)
}

// eachLine calls parse with each line of a part that is not blank, trimmed, and reports which were
// entries and which bad. The part may have most bytes.
func (p part) eachLine(most int64, parse func(line int, text string) (entry bool, err error)) (listfile.Report, error) {
	report := listfile.Report{File: p.name}
	r, err := p.open()
	if err != nil {
		return report, err
	}
	defer r.Close()
	in := &io.LimitedReader{R: r, N: most + 1}
	scan := bufio.NewScanner(in)
	for scan.Scan() {
		report.Lines++
		text := strings.TrimSpace(scan.Text())
		if text == "" {
			continue
		}
		if entry, err := parse(report.Lines, text); err != nil {
			addBad(&report, report.Lines, "", err)
		} else if entry {
			report.Good++
		}
	}
	switch {
	case scan.Err() != nil:
		return report, fmt.Errorf("%s: %w", p.name, scan.Err())
	case in.N <= 0:
		return report, fail(TooLarge, "%s: more than %d bytes", p.name, most)
	}
	return report, nil
}

// names reads the lines of a part.
func (p part) names() (lines []nameLine, report listfile.Report, err error) {
	report, err = p.eachLine(maxNameBytes, func(line int, text string) (bool, error) {
		l, err := parseNameLine(line, text)
		if l != nil {
			lines = append(lines, *l)
		}
		return l != nil, err
	})
	if err == nil && report.Bad > 0 && report.Good == 0 {
		err = fmt.Errorf("%s: %w: %w", p.name, listfile.ErrTooManyBad, report.Errors[0].Err)
	}
	return lines, report, err
}

// lookUp looks up the names that are due, or all of them, some at a time. Their addresses are valid
// for an interval at most.
func (s *source) lookUp(ctx context.Context, wanted map[string]*resolved, interval time.Duration) {
	var all sync.WaitGroup
	slots := make(chan struct{}, lookups)
	ctx, cancel := context.WithTimeout(ctx, lookupsTimeout)
	defer cancel()
	now := time.Now()
	for name, r := range wanted {
		if !s.anew && r.until.After(now) {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			limited, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			s.lookUpName(limited, name, r, interval)
		})
	}
	all.Wait()
}

// lookUpName looks up a name in each family by itself: one whose server fails keeps its last
// addresses, whatever becomes of the other. The addresses are valid for an interval at most.
func (s *source) lookUpName(ctx context.Context, name string, r *resolved, interval time.Duration) {
	families := []struct {
		network, text string
		has           func(netip.Addr) bool
		addresses     []netip.Addr
		ttl           time.Duration
		err           error
	}{{network: "ip4", text: "IPv4", has: netip.Addr.Is4}, {network: "ip6", text: "IPv6", has: netip.Addr.Is6}}
	var both sync.WaitGroup
	for i := range families {
		f := &families[i]
		both.Go(func() { f.addresses, f.ttl, f.err = s.lookup(ctx, f.network, name) })
	}
	both.Wait()
	var addresses []netip.Addr
	var none, failed error // why there is no address, and why a family is not known
	ttl, answered := time.Duration(0), false
	for _, f := range families {
		switch {
		case f.err == nil:
			addresses, answered = append(addresses, f.addresses...), true
			if f.ttl > 0 && (ttl == 0 || f.ttl < ttl) {
				ttl = f.ttl
			}
		case notFound(f.err):
			if none == nil {
				none = f.err
			}
		default:
			what := "no " + f.text + " addresses"
			for _, a := range r.addresses {
				if f.has(a) {
					addresses, what = append(addresses, a), "its last "+f.text+" addresses stay"
				}
			}
			none, failed = f.err, fmt.Errorf("%s: %w", what, f.err)
		}
	}
	if addresses = usable(addresses); answered && len(addresses) > 0 {
		if ttl == 0 {
			ttl = unknownTTL
		}
		ttl = min(max(ttl, leastTTL), interval)
		if failed != nil {
			ttl = min(ttl, failedLookup)
		}
		*r = resolved{addresses, time.Now().Add(ttl), failed}
		return
	}
	if none == nil {
		none = errors.New("no address")
	}
	if len(r.addresses) > 0 {
		none = fmt.Errorf("its last addresses stay: %w", none)
	}
	r.until, r.err = time.Now().Add(failedLookup), none
}

// notFound reports whether an error of a lookup says that there are no addresses: other than for
// a server that fails, this is the answer.
func notFound(err error) bool {
	var dns *net.DNSError
	var family *net.AddrError // hosts has the name in the other family only
	return errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &family)
}

// usable returns the addresses that a host can have, sorted, at most maxAddresses.
func usable(addresses []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, a := range addresses {
		if a = a.Unmap().WithZone(""); !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	return all[:min(len(all), maxAddresses)]
}

// restoreNames takes over the addresses of names from the text that resolve made.
func (s *source) restoreNames(text io.Reader) {
	s.names = make(map[string]*resolved)
	for scan := bufio.NewScanner(text); scan.Scan(); {
		address, name, _ := strings.Cut(scan.Text(), " # ")
		a, err := netip.ParseAddr(address)
		if err != nil || name == "" {
			continue
		}
		r := s.names[name]
		if r == nil {
			r = &resolved{}
			s.names[name] = r
		}
		r.addresses = append(r.addresses, a)
	}
}

// lastAddresses returns the addresses of names, each of which is to be looked up again.
func lastAddresses(of map[string]*resolved) map[string]*resolved {
	last := make(map[string]*resolved)
	for name, r := range of {
		last[name] = &resolved{addresses: r.addresses}
	}
	return last
}

// findReasons says why the keys that are here, by their index, are in contents that were
// made.
func findReasons(b *known, here []int, keys []key.Key, origins []Origin) {
	text, err := b.parts[0].open()
	if err != nil {
		return
	}
	defer text.Close()
	for scan := bufio.NewScanner(text); scan.Scan(); {
		entry, reason, _ := strings.Cut(scan.Text(), " # ")
		p := prefix(entry)
		for _, i := range here {
			if of, _ := list.PrefixOf(keys[i]); of == p {
				origins[i].Reason = reason
			}
		}
	}
}

// systemLookup asks the resolvers of the host. The standard library does not say how long
// answers are valid, so that it reads them on their way.
func systemLookup(dial func(ctx context.Context, network, address string) (net.Conn, error)) lookup {
	return func(ctx context.Context, network, name string) ([]netip.Addr, time.Duration, error) {
		var mu sync.Mutex
		ttl := time.Duration(0)
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if udp, ok := c.(*net.UDPConn); ok && err == nil {
				return answers{udp, func(message []byte) {
					mu.Lock()
					defer mu.Unlock()
					if least := leastOf(message); least > 0 && (ttl == 0 || least < ttl) {
						ttl = least
					}
				}}, nil
			}
			return c, err
		}}
		addresses, err := r.LookupNetIP(ctx, network, name+".")
		mu.Lock()
		defer mu.Unlock()
		return addresses, ttl, err
	}
}

// answers is a connection to a resolver whose answers are seen.
type answers struct {
	*net.UDPConn
	see func(message []byte)
}

func (a answers) Read(p []byte) (int, error) {
	n, err := a.UDPConn.Read(p)
	if err == nil {
		a.see(p[:n])
	}
	return n, err
}

// leastOf returns the least time that an answer's records are valid, 0 if it has none.
func leastOf(message []byte) time.Duration {
	var p dnsmessage.Parser
	if _, err := p.Start(message); err != nil || p.SkipAllQuestions() != nil {
		return 0
	}
	least := time.Duration(0)
	for {
		h, err := p.AnswerHeader()
		if err != nil {
			return least
		}
		// A second for none, which leastTTL raises.
		if ttl := max(time.Duration(h.TTL)*time.Second, time.Second); least == 0 || ttl < least {
			least = ttl
		}
		if p.SkipAnswer() != nil {
			return least
		}
	}
}

var namesFormat = format{
	Description: Description{
		Name: "names", Example: "names", About: "names of hosts, which are resolved again and again",
		Grammar: "A [name](#names-of-hosts), an address or a prefix a line. `#` and `;` begin remarks.",
	},
	made: true,
}

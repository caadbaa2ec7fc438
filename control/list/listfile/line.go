package listfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"go4.org/netipx"

	"weir/control/list"
	"weir/filter/key"
)

// Reasons why a line is bad.
var (
	errOverlong = fmt.Errorf("line longer than %d bytes", maxLine)
	errCR       = errors.New("carriage return inside the line")
	errWrappers = errors.New("a line of TCP wrappers, as in hosts.deny: write the addresses alone, one a line")
	errSecond   = errors.New("a second address on the line: write one entry a line, a range as FIRST-LAST, a network as ADDRESS/LENGTH")
	errNoMatch  = errors.New("nomatch takes the entry out of the set: put it into an allow list")
	errShort    = errors.New("the range ends in a number: write the whole address, as in 192.0.2.4-192.0.2.10")
	errZone     = errors.New("zones have no meaning on the wire")
	errFamilies = errors.New("IPv4 mixed with IPv6")
	errReversed = errors.New("the range ends before it starts")
	errPorts    = errors.New("the range of ports ends before it starts")
	errArrow    = errors.New(`stray ">", a flow is written "protocol source > destination"`)
	errNoArrow  = errors.New(`no ">" in the flow`)
	errNoPort   = errors.New(`no port, write ":*" for any`)
	errBrackets = errors.New("write IPv6 in brackets and IPv4 without")
	errZeros    = errors.New("an octet with leading zeros, which some programs read as octal: write it without")
	errHosts    = errors.New("a hosts file's line for this host: format hosts skips these")
	errURL      = errors.New("a URL: weir matches addresses, not names")
	errPort     = errors.New(`an address with a port: read it with ignore_ports, or write a flow, as in "tcp 192.0.2.1:443 > *:*"`)
	errWildcard = errors.New("a wildcard mask: write a prefix length")
	errMask     = errors.New("a netmask with gaps: write a prefix for each part")
)

// defanged are spellings that keep an address in a report from becoming a link.
var defanged = strings.NewReplacer("[.]", ".", "(.)", ".", "[dot]", ".", "(dot)", ".", "[:]", ":")

// isBlank reports whether c separates words.
func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\v' || c == '\f' }

// parser turns lines into entries.
type parser struct {
	lenient     bool
	ignorePorts bool
	ranges      *ranges        // those that are in out, or another parser's; nil: not known
	pieces      []netip.Prefix // of the last range
	out         list.Entries
	wide        int // what ranges became beyond what each line may
}

func newParser(o Options) parser { return parser{lenient: o.Lenient, ignorePorts: o.IgnorePorts} }

// line parses a line, given without its line end, and appends its entries to
// p.out. It reports false for a blank line or a comment. If it fails, it
// appends nothing.
func (p *parser) line(b []byte) (bool, error) {
	// Nearly all lines of nearly all feeds.
	if a, bits, n := scanV4(b); n > 0 && n == len(b) && a<<bits == 0 {
		p.out.V4 = append(p.out.V4, list.V4(a, bits))
		return true, nil
	}
	if len(b) > maxLine {
		return false, errOverlong
	}
	if bytes.IndexByte(b, '\r') >= 0 {
		// If it is meant as a line end, the rest of the file would pass for a
		// remark or a comment.
		return false, errCR
	}
	b, _, _ = bytes.Cut(b, []byte{'#'})
	b, remark, _ := bytes.Cut(b, []byte{';'})
	text := string(b)
	if strings.ContainsAny(text, "[(") {
		text = defanged.Replace(text)
	}
	word, rest := cutEntry(text)
	switch {
	case word == "":
		return false, nil
	case len(remark) > 0 && separates(string(remark)):
		return true, errSecond
	case word[0] == '>':
		return true, p.destination(word + rest)
	case strings.IndexByte(word, '.') >= 0 || strings.IndexByte(word, ':') >= 0:
		return true, p.addresses(word, rest)
	}
	return true, p.flow(word, rest)
}

// cutEntry cuts s after its first word, with the end of a range or the length of a prefix
// where white space is around the sign. A comma at the end of the line is none of it.
func cutEntry(s string) (entry, rest string) {
	entry, rest = cutWord(s)
	next, after := cutWord(rest)
	if next == "" {
		return strings.TrimSuffix(entry, ","), ""
	}
	if !strings.ContainsAny(entry[len(entry)-1:], "-/") && !strings.ContainsAny(next[:1], "-/") {
		return entry, rest
	}
	whole := entry + next
	if next == "-" || next == "/" {
		next, after = cutWord(after)
		whole += next
	}
	_, last, _ := strings.Cut(whole, "-")
	_, length, _ := strings.Cut(whole, "/")
	if _, isNumber := number(length, 1<<16-1); isNumber || isNetmask(length) || meansAddress(last) {
		return whole, after
	}
	return entry, rest
}

// addresses parses an address, a prefix or a range.
func (p *parser) addresses(word, rest string) error {
	if inner, ok := strings.CutPrefix(word, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok { // as hosts.deny has IPv6
			word = inner
		}
	}
	if strings.HasSuffix(word, ":") && strings.Count(word, ":") == 1 {
		return errWrappers
	}
	first, last, isRange := strings.Cut(word, "-")
	if mask, after := cutWord(rest); !isRange && isNetmask(mask) {
		word, rest = word+"/"+mask, after
	}
	if err := checkText(rest, 255); err != nil {
		return err
	}
	if isRange {
		return p.span(first, last)
	}
	if host, hasPort := cutPort(word); hasPort {
		if !p.ignorePorts {
			return errPort
		}
		word = host
	}
	pre, err := p.prefix(word)
	if err != nil {
		return err
	}
	if name, _ := cutWord(rest); name != "" && pre.IsSingleIP() && (pre.Addr().IsUnspecified() || pre.Addr().IsLoopback()) {
		return errHosts
	}
	p.add(pre)
	return nil
}

// separates reports whether the text after a semicolon is another entry rather
// than a remark.
func separates(remark string) bool {
	word, _ := cutWord(remark)
	word, _, _ = strings.Cut(word, ";")
	return meansAddress(word)
}

// cutPort cuts an address before its port, as in 192.0.2.1:443, [2001:db8::1]:443,
// and with "|" in place of the colon, as MISP has it.
func cutPort(s string) (host string, ok bool) {
	host, port, ok := strings.Cut(s, "|")
	if !ok {
		i := strings.LastIndexByte(s, ':')
		if i < 0 || strings.Count(s, ":") > 1 && s[0] != '[' {
			return s, false
		}
		host, port = s[:i], s[i+1:]
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host, _ = strings.CutSuffix(inner, "]")
	}
	_, ok = number(port, 1<<16-1)
	return host, ok && isAddress(host)
}

// isNetmask reports whether s is a netmask in decimal, such as 255.255.255.0.
func isNetmask(s string) bool {
	a, bits, n := scanV4(s)
	return n > 0 && n == len(s) && bits == 32 && !strings.Contains(s, "/") && ^a&(^a+1) == 0
}

// add appends a masked prefix.
func (p *parser) add(pre netip.Prefix) {
	if !pre.Addr().Is4() {
		p.out.V6 = append(p.out.V6, pre)
		return
	}
	p.out.V4 = append(p.out.V4, list.V4Of(pre))
}

// span parses a range and appends the prefixes that cover it.
func (p *parser) span(first, last string) error {
	a, err := parseAddr(first)
	if err != nil {
		return fmt.Errorf("start of the range: %w", err)
	}
	if _, ok := number(last, 255); ok {
		return errShort
	}
	b, err := parseAddr(last)
	if err != nil {
		return fmt.Errorf("end of the range: %w", err)
	}
	if a.Is4In6() && b.Is4In6() {
		a, b = a.Unmap(), b.Unmap()
	}
	if a.BitLen() != b.BitLen() {
		return errFamilies
	}
	if b.Less(a) {
		return errReversed
	}
	r := netipx.IPRangeFrom(a, b)
	// A network may end in the last address, which is a netmask with all bits.
	if ones, size := net.IPMask(b.AsSlice()).Size(); size > 0 {
		_, network := r.Prefix()
		if pre := netip.PrefixFrom(a, ones); pre == pre.Masked() && !network {
			return fmt.Errorf("the end of the range is a netmask: write %v", pre)
		}
	}
	if p.ranges.has(r) {
		return nil
	}
	p.pieces = r.AppendPrefixes(p.pieces[:0])
	for _, pre := range p.pieces {
		p.add(pre)
	}
	if n := len(p.pieces); n >= memorable {
		p.ranges.add(r)
		each := wideV6
		if a.Is4() {
			each = wideV4
		}
		p.wide += each * max(n-freePrefixes, 0)
	}
	return nil
}

// destination parses the ">" of a destination alone and what follows.
func (p *parser) destination(s string) error {
	word, rest := cutEntry(s[1:])
	if err := checkText(rest, 255); err != nil {
		return err
	}
	pre, err := p.prefix(word)
	if err != nil {
		return err
	}
	p.out.Flows = append(p.out.Flows, key.Destination(pre))
	return nil
}

// flow parses what follows a flow's protocol.
func (p *parser) flow(proto, rest string) error {
	var shape key.Shape
	t := key.Tuple{HasPorts: true}
	if proto != "any" {
		var ok bool
		if t.Proto, ok = key.ProtoNumber(proto); !ok {
			if strings.Contains(rest, " :") || strings.Contains(rest, ": ") {
				return errWrappers
			}
			return fmt.Errorf("%q is neither an address nor a protocol", shorten(proto))
		}
		shape.Fields |= key.FieldProto
	}
	left, right, ok := strings.Cut(rest, ">")
	if !ok {
		return errNoArrow
	}
	right, rest = cutWord(right)
	if err := checkText(rest, 1<<16-1); err != nil {
		return err
	}
	left, stray := cutWord(left)
	if word, _ := cutWord(stray); word != "" {
		return fmt.Errorf(`%q before the ">" of the flow`, shorten(word))
	}
	src, srcPorts, err := p.side(left)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	dst, dstPorts, err := p.side(right)
	if err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	if srcPorts != anyPort {
		shape.Fields |= key.FieldSrcPort
	}
	if dstPorts != anyPort {
		shape.Fields |= key.FieldDstPort
	}
	if shape.Ports() && proto != "any" && !key.HasPorts(t.Proto) {
		return fmt.Errorf("protocol %s has no ports", proto)
	}
	families := 1
	switch {
	case src == anyAddr && dst == anyAddr:
		families = 2
	case src == anyAddr:
		src = all(dst)
	case dst == anyAddr:
		dst = all(src)
	}
	if src.Addr().BitLen() != dst.Addr().BitLen() {
		return errFamilies
	}
	if n := families * srcPorts.len() * dstPorts.len(); n > maxFlows {
		return fmt.Errorf("the ports make %d entries, %d at most: make the range shorter, or give a list its own ports", n, maxFlows)
	} else {
		p.wide += wideFlow * max(n-freeFlows, 0)
	}
	for from := srcPorts.first; from <= srcPorts.last; from++ {
		for to := dstPorts.first; to <= dstPorts.last; to++ {
			t.SrcPort, t.DstPort = uint16(from), uint16(to)
			if families == 1 {
				p.addFlow(shape, t, src, dst)
				continue
			}
			p.addFlow(shape, t, allV4, allV4)
			p.addFlow(shape, t, allV6, allV6)
		}
	}
	return nil
}

// maxFlows bounds the entries of a line, an entry a port: 2048 ports in both families.
// A key has whole ports, so that a range has no shorter form in the data plane.
const maxFlows = 4096

// addFlow appends the flow of t's protocol and ports between two prefixes of
// one family.
func (p *parser) addFlow(s key.Shape, t key.Tuple, src, dst netip.Prefix) {
	t.Src, t.Dst = src.Addr(), dst.Addr()
	s.SrcBits, s.DstBits = uint8(src.Bits()), uint8(dst.Bits())
	if t.Src.Is6() {
		s.Fields |= key.FieldV6
	}
	k, _ := s.Of(t) // cannot fail: the family is right and t has ports
	p.out.Flows = append(p.out.Flows, k)
}

// ports is a range of ports, both ends included.
type ports struct{ first, last int }

var anyPort = ports{-1, -1} // and packets without ports

func (p ports) len() int { return p.last - p.first + 1 }

// parsePorts parses a port, a range of ports, or "*".
func parsePorts(s string) (ports, error) {
	if s == "*" {
		return anyPort, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, ok := number(first, 1<<16-1)
	b, both := number(last, 1<<16-1)
	switch {
	case !ok || !both:
		return anyPort, fmt.Errorf("%q is not a port", shorten(s))
	case b < a:
		return anyPort, errPorts
	}
	return ports{a, b}, nil
}

var (
	anyAddr netip.Prefix // the "*" of either family
	allV4   = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	allV6   = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// all returns the prefix of all addresses of p's family.
func all(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return allV4
	}
	return allV6
}

// side parses one side of a flow: addresses, or anyAddr, and ports, or anyPort.
func (p *parser) side(s string) (netip.Prefix, ports, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return anyAddr, anyPort, errNoPort
	}
	host := s[:i]
	ports, err := parsePorts(s[i+1:])
	if err != nil {
		return anyAddr, anyPort, err
	}
	if host == "*" {
		return anyAddr, ports, nil
	}
	inner, brackets := strings.CutPrefix(host, "[")
	if brackets {
		inner, brackets = strings.CutSuffix(inner, "]")
	}
	if brackets != strings.Contains(inner, ":") {
		return anyAddr, anyPort, errBrackets
	}
	pre, err := p.prefix(inner)
	return pre, ports, err
}

// prefix parses an address or a prefix and returns it masked.
func (p *parser) prefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "://") {
		return netip.Prefix{}, errURL
	}
	base, stars := s, 0
	for strings.HasSuffix(base, ".*") {
		base, stars = base[:len(base)-2], stars+1
	}
	if stars > 0 {
		s = base + strings.Repeat(".0", stars) + "/" + strconv.Itoa(32-8*stars)
	}
	host, length, hasLength := strings.Cut(s, "/")
	a, err := parseAddr(host)
	if err != nil {
		return netip.Prefix{}, err
	}
	ones := a.BitLen()
	switch mask, _, n := scanV4(length); {
	case !hasLength:
	case n > 0 && a.Is4() && isNetmask(length):
		ones = bits.OnesCount32(mask)
	case n > 0 && mask&(mask+1) == 0:
		return netip.Prefix{}, errWildcard
	case n > 0:
		return netip.Prefix{}, errMask
	default:
		var ok bool
		if ones, ok = number(length, ones); !ok {
			return netip.Prefix{}, fmt.Errorf("%q is not a prefix length from 0 to %d", shorten(length), a.BitLen())
		}
	}
	pre := netip.PrefixFrom(a, ones)
	switch masked := pre.Masked(); {
	case masked == pre:
	case p.lenient:
		pre = masked
	default:
		return netip.Prefix{}, fmt.Errorf("host bits set beyond /%d: write %v or %v, or set lenient", ones, masked, a)
	}
	if a.Is4In6() && ones > 96 {
		pre = netip.PrefixFrom(pre.Addr().Unmap(), ones-96)
	}
	return pre, nil
}

// parseAddr is netip.ParseAddr without zones and with shorter errors.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err == nil:
	case hasZeros(s):
		return a, errZeros
	default:
		// The error repeats its input, which a LineError shows anyway.
		reason := strings.TrimPrefix(err.Error(), "ParseAddr("+strconv.Quote(s)+"): ")
		return a, fmt.Errorf("not an address: %s", shorten(reason))
	}
	if a.Zone() != "" {
		return a, errZone
	}
	return a, nil
}

// hasZeros reports whether s would be an IPv4 address but for leading zeros.
func hasZeros(s string) bool {
	octets := strings.Split(s, ".")
	if len(octets) != 4 {
		return false
	}
	for i, o := range octets {
		if trimmed := strings.TrimLeft(o, "0"); trimmed != "" {
			octets[i] = trimmed
		} else if o != "" {
			octets[i] = "0"
		}
	}
	without := strings.Join(octets, ".")
	_, _, n := scanV4(without)
	return n == len(without) && n < len(s)
}

// checkText checks the text after an entry. Any text is a remark, unless it may be a part
// of the entry that would be ignored: a flow without its protocol, more addresses or a
// netmask among the first words, or a number up to most behind a sign or a word that
// joins it to the entry.
func checkText(s string, most int) error {
	word, after := cutWord(s)
	bare := strings.TrimLeftFunc(word, isSign)
	if bare == "" || joins[strings.ToLower(strings.TrimRight(word, ":="))] {
		bare, _ = cutWord(after)
	} else if bare == word {
		bare = ""
	}
	if _, ok := number(strings.TrimRight(strings.TrimPrefix(bare, "/"), ",."), most); ok {
		return fmt.Errorf(`%q may be a part of the entry: write FIRST-LAST, ADDRESS/LENGTH, or "#" before a remark`, shorten(strings.TrimSpace(s)))
	}
	switch {
	case strings.HasPrefix(word, ">"):
		return errArrow
	case word == "nomatch":
		return errNoMatch
	}
	for range 3 {
		if word, s = cutWord(s); meansAddress(word) {
			return errSecond
		}
	}
	return nil
}

// joins are words between the parts of a range or of a prefix, or before what it is without.
var joins = map[string]bool{
	"to": true, "through": true, "thru": true, "until": true,
	"netmask": true, "mask": true, "prefix": true, "prefixlen": true, "length": true, "len": true, "bits": true,
	"except": true, "excluding": true, "without": true, "not": true,
}

// isSign reports whether r is neither a letter nor a digit.
func isSign(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// meansAddress reports whether s is an address, a prefix, a range or a netmask, or one that is
// written in another way.
func meansAddress(s string) bool {
	if strings.IndexByte(s, '.') < 0 && strings.IndexByte(s, ':') < 0 { // a shortcut for most remarks
		return len(s) == len("0xffffff00") && strings.HasPrefix(s, "0x")
	}
	if _, hasPort := cutPort(s); hasPort {
		return true
	}
	s = strings.ReplaceAll(strings.Trim(s, "-–—,;.!~+=<>(){}[]|\"'"), ".*", ".0")
	if isAddress(s) || hasZeros(s) {
		return true
	}
	if first, last, isRange := strings.Cut(s, "-"); isRange {
		return isAddress(first) && isAddress(last)
	}
	host, mask, _ := strings.Cut(s, "/")
	return isAddress(host) && isAddress(mask)
}

// isAddress reports whether s is a well-formed address or prefix.
func isAddress(s string) bool {
	if _, _, n := scanV4(s); n > 0 {
		return n == len(s)
	}
	if strings.Count(s, ":") < 2 { // a shortcut for most remarks
		return false
	}
	host, _, _ := strings.Cut(s, "/")
	_, err := netip.ParseAddr(host)
	return err == nil
}

// cutWord cuts s after its first word. The word is empty if s is blank.
func cutWord(s string) (word, rest string) {
	i := 0
	for i < len(s) && isBlank(s[i]) {
		i++
	}
	j := i
	for j < len(s) && !isBlank(s[j]) {
		j++
	}
	return s[i:j], s[j:]
}

// number parses a decimal number from 0 to most, without sign and leading
// zeros.
func number(s string, most int) (int, bool) {
	if s == "" || s[0]-'0' > 9 { // a shortcut for most remarks
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || int(n) > most || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	return int(n), true
}

// scanV4 parses the IPv4 address or prefix at the start of s and returns the
// address in host order, the length in bits and the number of bytes read, 0 if
// there is none. It accepts what netip does, but does not mask host bits.
func scanV4[T string | []byte](s T) (addr uint32, bits, n int) {
	i := 0
	for dots := 0; ; dots++ {
		start, octet := i, uint32(0)
		for i < len(s) && s[i]-'0' <= 9 && i < start+3 {
			octet = octet*10 + uint32(s[i]-'0')
			i++
		}
		if i == start || octet > 255 || i > start+1 && s[start] == '0' {
			return 0, 0, 0
		}
		addr = addr<<8 | octet
		if dots == 3 {
			break
		}
		if i == len(s) || s[i] != '.' {
			return 0, 0, 0
		}
		i++
	}
	if i == len(s) || s[i] != '/' {
		return addr, 32, i
	}
	i++
	start := i
	for i < len(s) && s[i]-'0' <= 9 && i < start+2 {
		bits = bits*10 + int(s[i]-'0')
		i++
	}
	if i == start || bits > 32 || i > start+1 && s[start] == '0' {
		return 0, 0, 0
	}
	return addr, bits, i
}

package flood

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/filter/penalty"
)

// MaxPatterns is the maximum number of patterns of programs: MAX_PATTERNS of bpf/pattern.h.
const MaxPatterns = 16

// Pattern is a rule with what becomes of its packets.
type Pattern struct {
	Rule
	penalty.Limit      // a rate of 0 drops them all
	Trial         bool // they are only counted
}

// Patterns decide on packets in order: the first pattern whose rate a packet exceeds drops it. They
// are the twin of bpf/pattern.h.
type Patterns struct {
	Now func() time.Duration // by the kernel's monotonic clock

	// Packets of each pattern, and those of them that leave by it, which the caller counts.
	Matched, Dropped []uint64

	all    []Pattern
	meters []map[sharers]*penalty.Meter
}

// Add adds a pattern.
func (ps *Patterns) Add(p Pattern) {
	ps.all = append(ps.all, p)
	ps.meters = append(ps.meters, make(map[sharers]*penalty.Meter))
	ps.Matched, ps.Dropped = append(ps.Matched, 0), append(ps.Dropped, 0)
}

// Drops returns the number of the pattern, from 1, that drops a packet of a frame of the given
// length, 0 for none.
func (ps *Patterns) Drops(r *Record, length int) int {
	for i := range ps.all {
		p := &ps.all[i]
		now := ps.Now()
		if !p.Matches(r) || now >= p.Until {
			continue
		}
		ps.Matched[i]++
		if !p.Trial && ps.meter(i, r).Check(uint64(length), now) != penalty.None {
			return i + 1
		}
	}
	return 0
}

// meter returns the meter of a pattern for a packet and those with which it shares the rate.
func (ps *Patterns) meter(i int, r *Record) *penalty.Meter {
	with := ps.all[i].Per.of(r)
	if ps.meters[i][with] == nil {
		ps.meters[i][with] = penalty.NewMeter(ps.all[i].Limit)
	}
	return ps.meters[i][with]
}

// Bounds returns the least and the greatest value of a field in the packets that a rule matches, as
// programs compare them: 0 and 2^32 - 1 where the rule leaves the field open.
func (u *Rule) Bounds(f Field) (lo, hi uint32) {
	if c := u.has(f); c != nil {
		return c.Lo, c.Hi
	}
	return 0, math.MaxUint32
}

// ComparedFlags returns the bits of the value of [Flags] that programs compare.
func (u *Rule) ComparedFlags() uint32 {
	if c := u.has(Flags); c != nil {
		return c.compared()
	}
	return math.MaxUint32
}

// Side returns the prefix of sources or destinations of a rule, and false where there is none.
func (u *Rule) Side(f Field) (netip.Prefix, bool) {
	if c := u.has(f); c != nil {
		return c.Prefix, true
	}
	return netip.Prefix{}, false
}

// widest are the greatest values of fields, 0 for those that are not numbers in patterns.
var widest = [numValues]uint32{
	Protocol: 255, Length: 65535, SourcePort: 65535, DestinationPort: 65535, TTL: 255, ID: 65535, HeaderLength: 15, Window: 65535,
}

// ParseRule reads a pattern, as [Rule.String] writes it: conditions in any order, each a word and,
// but for protocols with a name and stranger, its value; and "per" with what shares the rate.
func ParseRule(text string) (u Rule, err error) {
	words := strings.Fields(text)
	for len(words) > 0 {
		if words[0] == "per" && len(words) > 1 && u.Per == (Per{}) {
			if u.Per, err = parsePer(words[1]); err != nil {
				return Rule{}, err
			}
			words = words[2:]
			continue
		}
		c, n, err := parseCondition(words)
		switch {
		case err != nil:
			return Rule{}, err
		case u.has(c.Field) != nil:
			return Rule{}, fmt.Errorf("pattern %q has two conditions of %s", text, c.Field)
		}
		u, words = u.with(c), words[n:]
	}
	return u, u.check()
}

// check returns why no packet can match the rule.
func (u *Rule) check() error {
	src, dst := u.has(SourcePrefix), u.has(DestinationPrefix)
	if src != nil && dst != nil && src.Prefix.Addr().Is4() != dst.Prefix.Addr().Is4() {
		return fmt.Errorf("%v and %v are of different families", src.Prefix, dst.Prefix)
	}
	return nil
}

// leastBits are the shortest prefixes of sources that a pattern may have, and of destinations that it
// may have without a protocol.
const leastBits = 8

// Narrow returns why a rule is too wide to drop what it matches: it must name a protocol or a
// destination, and more than a range of source ports, or a prefix of sources shorter than /8.
func (u *Rule) Narrow() error {
	protocol, to := u.has(Protocol), u.has(DestinationPrefix)
	if (protocol == nil || protocol.Lo == 0 && protocol.Hi == 255) && (to == nil || to.Prefix.Bits() < leastBits) {
		return fmt.Errorf("a pattern names a protocol, or a destination of /%d or longer", leastBits)
	}
	if c := u.has(SourcePrefix); c != nil && c.Prefix.Bits() < leastBits {
		return fmt.Errorf("src %v is too wide: want /%d or longer", c.Prefix, leastBits)
	}
	if c := u.has(SourcePort); c != nil && c.Lo != c.Hi && len(u.Conditions) == 2 && u.has(Protocol) != nil {
		return errors.New("a range of source ports alone is chance: want one more condition")
	}
	return nil
}

// parseCondition reads the condition that words begin with, and returns how many of them it took.
func parseCondition(words []string) (c Condition, n int, err error) {
	word := words[0]
	for number, name := range protocols {
		if name == word {
			return Condition{Field: Protocol, Lo: number, Hi: number}, 1, nil
		}
	}
	at := slices.Index(fieldNames[:], word)
	switch {
	case at < 0:
		return c, 0, fmt.Errorf("%q is no field of a pattern: want one of %s, or tcp, udp and others by name", word, strings.Join(fieldNames[:], ", "))
	case Field(at) == Strangers:
		return Condition{Field: Strangers, Lo: 1, Hi: 1}, 1, nil
	case len(words) < 2:
		return c, 0, fmt.Errorf("%s takes a value", word)
	}
	c = Condition{Field: Field(at)}
	if err = c.parse(words[1]); err != nil {
		err = fmt.Errorf("%s %s: %w", word, words[1], err)
	}
	return c, 2, err
}

// parse reads the value of a condition.
func (c *Condition) parse(text string) (err error) {
	switch c.Field {
	case SourcePrefix, DestinationPrefix:
		c.Prefix, err = ParsePrefix(text)
		return err
	case FragmentPart:
		at := slices.Index([]string{"none", "first", "later"}, text)
		if at < 0 {
			return errors.New("want none, first or later")
		}
		c.Lo, c.Hi = uint32(at), uint32(at)
		return nil
	case Flags:
		return c.parseFlags(text)
	case Payload:
		v, err := strconv.ParseUint(text, 16, 32)
		if err != nil || len(text) != 8 || v == 0 {
			return errors.New("want the first four bytes in hexadecimal, which are not all zero")
		}
		c.Lo, c.Hi = uint32(v), uint32(v)
		return nil
	}
	lo, hi, isRange := strings.Cut(text, "-")
	if !isRange {
		hi = lo
	}
	from, err := strconv.ParseUint(lo, 10, 32)
	to, err2 := strconv.ParseUint(hi, 10, 32)
	if err != nil || err2 != nil || from > to || to > uint64(widest[c.Field]) {
		return fmt.Errorf("want a number, or a range from the least to the greatest, up to %d", widest[c.Field])
	}
	c.Lo, c.Hi = uint32(from), uint32(to)
	return nil
}

// ParsePrefix reads an address or a prefix. An address of IPv4 that is mapped to IPv6 is one of IPv4.
func ParsePrefix(text string) (p netip.Prefix, err error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err = netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, errors.New("want an address or a prefix")
	case p != p.Masked():
		return p, fmt.Errorf("it has host bits: want %v or %v", p.Addr(), p.Masked())
	}
	return p, nil
}

// flagLetters are the flags of TCP from bit 0 on.
const flagLetters = "FSRPAUEC"

// parseFlags reads flags, as in SA, or S/SA: of S and A, just S.
func (c *Condition) parseFlags(text string) (err error) {
	set, of, masked := strings.Cut(text, "/")
	if c.Lo, err = flagsOf(set); err != nil {
		return err
	}
	c.Hi = c.Lo
	if !masked {
		return nil
	}
	mask, err := flagsOf(of)
	switch {
	case err != nil:
		return err
	case mask == 0 || c.Lo&^mask != 0:
		return errors.New("want behind / the flags that are compared, with those before it")
	case mask != 0xff: // which are all
		c.Mask = uint8(mask)
	}
	return nil
}

func flagsOf(text string) (flags uint32, err error) {
	if text == "none" {
		return 0, nil
	}
	if text == "" {
		return 0, errors.New("want flags before a /")
	}
	for _, letter := range text {
		at := strings.IndexRune(flagLetters, letter)
		if at < 0 || flags>>at&1 != 0 {
			return 0, fmt.Errorf("want none, or letters of %s, each once", flagLetters)
		}
		flags |= 1 << at
	}
	return flags, nil
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/control/engine"
	"weir/control/feed"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/multicast"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// Types of fields that are written as a scalar.
type (
	Path    string  // absolute
	Address string  // of a listener: host:port
	URL     string  // http or https; user and query may be secret
	SHA256  string  // in hexadecimal
	Share   float64 // 0…1, written 5% or 0.05
	Size    int64   // bytes, written 64MiB
	Rate    float64 // units a second, written 10k/s
	Count   int64   // units, written 64k

	// Separator is what parts the columns of CSV: one character, or "" for the
	// default.
	Separator string

	// Group is a multicast group that routers forward.
	Group netip.Addr

	// Threshold is a rate or a share, one of them; the other is 0.
	Threshold struct {
		Rate  Rate
		Share Share
	}

	// TrackerKey is what a tracker counts together, as shapes of both families.
	TrackerKey struct{ V4, V6 key.Shape }

	Action        string // of a list
	TrackerAction string
	LoopAction    string
	LogFormat     string
)

const (
	Block Action = "block"
	Allow Action = "allow"

	Report        TrackerAction = "report"
	Limit         TrackerAction = "limit"
	BlockForATime TrackerAction = "block"

	ReportLoops LoopAction = "report"
	DropLoops   LoopAction = "drop"

	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// codec reads and writes the scalars of a type.
type codec struct {
	parse  func(text string) (reflect.Value, error)
	format func(reflect.Value) string
	schema map[string]any

	// hide is what may be shown of a value that holds secrets.
	hide func(reflect.Value) string
}

var codecs = map[reflect.Type]codec{
	reflect.TypeFor[membership.Mode]():  oneOf(membership.Exact, membership.Approximate),
	reflect.TypeFor[loader.Hook]():      oneOf(loader.Native, loader.Generic, loader.Offload),
	reflect.TypeFor[verdict.Action]():   oneOf(verdict.Pass, verdict.Drop),
	reflect.TypeFor[engine.Direction](): oneOf(engine.Source, engine.Destination, engine.Both),
	reflect.TypeFor[sketch.Unit]():      oneOf(sketch.Packets, sketch.Bytes),
	reflect.TypeFor[feed.Kind](): oneOf(feed.Plain, feed.CSV, feed.JSON, feed.JSONLines, feed.Spamhaus,
		feed.CrowdSec, feed.NFTables, feed.IPSet),
	reflect.TypeFor[Action]():        oneOf(Block, Allow),
	reflect.TypeFor[TrackerAction](): oneOf(Report, Limit, BlockForATime),
	reflect.TypeFor[LoopAction]():    oneOf(ReportLoops, DropLoops),
	reflect.TypeFor[LogFormat]():     oneOf(LogText, LogJSON),
	reflect.TypeFor[slog.Level]():    oneOf(slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError),

	reflect.TypeFor[time.Duration](): text(`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`, "a number and its unit, as in 30s, 10m or 24h",
		parseDuration, formatDuration),
	reflect.TypeFor[Share]():     number(text(`^[0-9]+(\.[0-9]+)?%?$`, "a share, as in 5% or 0.05", parseShare, formatShare), 1),
	reflect.TypeFor[Size]():      number(text(`^[0-9]+(\.[0-9]+)?([KMGT]iB)?$`, "bytes, as in 65536 or 64MiB", parseSize, formatSize), maxInteger),
	reflect.TypeFor[Count]():     number(text(`^[0-9]+(\.[0-9]+)?[kMG]?$`, "a number, as in 2000 or 64k", parseCount, formatCount), maxInteger),
	reflect.TypeFor[Rate]():      text(`^[0-9]+(\.[0-9]+)?[kMG]?/s$`, "a number a second, as in 10000/s or 10k/s", parseRate, formatRate),
	reflect.TypeFor[Threshold](): text(`^[0-9]+(\.[0-9]+)?([kMG]?/s|%)$`, "a number a second, as in 10k/s, or a share, as in 0.1%", parseThreshold, formatThreshold),
	reflect.TypeFor[TrackerKey](): text(`^(flow|(src|dst)(/[0-9]+)?)$`, "src, dst, flow, or a prefix as in src/24",
		parseTrackerKey, formatTrackerKey),
	reflect.TypeFor[Path]():        text(`^(/.*)?$`, "an absolute path", kept[Path], shown[Path]),
	reflect.TypeFor[loader.Pins](): text(`^/`, "an absolute path", kept[loader.Pins], shown[loader.Pins]),
	reflect.TypeFor[SHA256]():      text(`^[0-9a-fA-F]{64}$`, "64 hexadecimal digits", kept[SHA256], shown[SHA256]),
	reflect.TypeFor[Separator]():   text(`^[^\r\n"]$`, `one character, as in ";" or "\t"`, kept[Separator], shown[Separator]),
	reflect.TypeFor[Address]():     text(`:[0-9]+$`, "host:port, as in 127.0.0.1:9477", parseAddress, shown[Address]),
	reflect.TypeFor[verdict.FailsafePort](): text(`^(tcp|udp|sctp)/[0-9]+$`, "tcp/, udp/ or sctp/ and a number",
		ruleset.ParseFailsafePort, ruleset.FormatFailsafePort),
	reflect.TypeFor[netip.Prefix](): text(`^[0-9a-fA-F:.]+(/[0-9]+)?$`, "an address or a prefix",
		ruleset.ParseFailsafePrefix, netip.Prefix.String),
	reflect.TypeFor[Group](): text(`^[0-9a-fA-F:.]+$`, "a multicast group, as in 239.1.2.3 or ff0e::1", ParseGroup, Group.String),
	reflect.TypeFor[URL]():   secret(text(`^https?://`, "an address that begins with http:// or https://", parseURL, shown[URL])),
}

// oneOf is the codec of a type that has a name for each of its values.
func oneOf[T any](values ...T) codec {
	name := func(v T) string { return strings.ToLower(fmt.Sprint(v)) } // slog has its levels in capitals
	var names []string
	for _, v := range values {
		names = append(names, name(v))
	}
	return codec{
		parse: func(text string) (reflect.Value, error) {
			i := slices.Index(names, text)
			if i < 0 {
				return reflect.Value{}, wanted(text, names)
			}
			return reflect.ValueOf(values[i]), nil
		},
		format: func(v reflect.Value) string { return name(v.Interface().(T)) },
		schema: map[string]any{"enum": names},
	}
}

// text is the codec of a type whose text has a pattern, and in words is what.
func text[T any](pattern, what string, parse func(string) (T, error), format func(T) string) codec {
	matches := regexp.MustCompile(pattern).MatchString
	return codec{
		parse: func(text string) (reflect.Value, error) {
			if !matches(text) {
				return reflect.Value{}, fmt.Errorf("%q: want %s", text, what)
			}
			v, err := parse(text)
			return reflect.ValueOf(v), err
		},
		format: func(v reflect.Value) string { return format(v.Interface().(T)) },
		schema: map[string]any{"type": "string", "pattern": pattern},
	}
}

// number is a text that may be a plain number as well.
func number(c codec, most float64) codec {
	c.schema = map[string]any{"anyOf": []any{c.schema, map[string]any{"type": "number", "minimum": 0, "maximum": most}}}
	return c
}

// secret is the codec of URLs. What is shown is without user and query, and
// errors are without the URL.
func secret(c codec) codec {
	parse := c.parse
	c.parse = func(text string) (reflect.Value, error) {
		v, err := parse(text)
		if err != nil {
			err = errors.New(strings.TrimPrefix(err.Error(), strconv.Quote(text)+": "))
		}
		return v, err
	}
	c.hide = func(v reflect.Value) string { return feed.Source{URL: v.String()}.String() }
	return c
}

func kept[T ~string](s string) (T, error) { return T(s), nil }
func shown[T ~string](v T) string         { return string(v) }

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q: want whole milliseconds, up to 292 years", s)
	}
	return d, nil
}

func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func parseShare(s string) (Share, error) {
	digits, percent := strings.CutSuffix(s, "%")
	if percent {
		digits += "e-2"
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || f > 1 {
		return 0, fmt.Errorf("%q: want 0%% … 100%%", s)
	}
	return Share(f), nil
}

// formatShare gives percents. It moves the point in the text, since a product
// would be rounded.
func formatShare(s Share) string {
	whole, part, _ := strings.Cut(strconv.FormatFloat(float64(s), 'f', -1, 64), ".")
	part += "00"
	whole, part = strings.TrimLeft(whole+part[:2], "0"), strings.TrimRight(part[2:], "0")
	if part != "" {
		part = "." + part
	}
	return cmp.Or(whole, "0") + part + "%"
}

// orNone is a share as packages list and feed have it: there 0 is the default,
// and a negative number is none.
func (s Share) orNone() float64 {
	if s == 0 {
		return -1
	}
	return float64(s)
}

// scale is a suffix of numbers and what it stands for.
type scale struct {
	suffix string
	factor float64
}

var (
	thousands = []scale{{"k", 1e3}, {"M", 1e6}, {"G", 1e9}}
	binaries  = []scale{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}
)

func parseScaled(s string, scales []scale) (float64, error) {
	factor := 1.
	for _, c := range scales {
		if digits, ok := strings.CutSuffix(s, c.suffix); ok {
			s, factor = digits, c.factor
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	return f * factor, err
}

// formatScaled is the inverse of parseScaled, with the largest suffix that
// leaves an integer.
func formatScaled(f float64, scales []scale) string {
	for _, c := range slices.Backward(scales) {
		if g := f / c.factor; f > 0 && g == math.Trunc(g) {
			return strconv.FormatFloat(g, 'f', -1, 64) + c.suffix
		}
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// maxInteger is up to where all integers are numbers of JSON, and float64.
const maxInteger = 1 << 53

// parseInteger is parseScaled for what cannot be divided.
func parseInteger(s string, scales []scale) (int64, error) {
	f, err := parseScaled(s, scales)
	if err != nil || f != math.Trunc(f) || f > maxInteger {
		return 0, fmt.Errorf("%q: want an integer up to 2^53", s)
	}
	return int64(f), nil
}

func parseSize(s string) (Size, error) {
	n, err := parseInteger(s, binaries)
	return Size(n), err
}

func formatSize(s Size) string { return formatScaled(float64(s), binaries) }

func parseCount(s string) (Count, error) {
	n, err := parseInteger(s, thousands)
	return Count(n), err
}

func formatCount(c Count) string { return formatScaled(float64(c), thousands) }

func parseRate(s string) (Rate, error) {
	f, err := parseScaled(strings.TrimSuffix(s, "/s"), thousands)
	if err != nil || f == 0 {
		return 0, fmt.Errorf("%q: want more than nothing", s)
	}
	return Rate(f), nil
}

func formatRate(r Rate) string { return formatScaled(float64(r), thousands) + "/s" }

func parseThreshold(s string) (t Threshold, err error) {
	if strings.HasSuffix(s, "%") {
		t.Share, err = parseShare(s)
		if err == nil && t.Share == 0 {
			err = fmt.Errorf("%q: want more than nothing", s)
		}
		return t, err
	}
	t.Rate, err = parseRate(s)
	return t, err
}

func formatThreshold(t Threshold) string {
	if t.Share > 0 {
		return formatShare(t.Share)
	}
	return formatRate(t.Rate)
}

func parseTrackerKey(s string) (TrackerKey, error) {
	if s == "flow" {
		all := key.FieldSrcPort | key.FieldDstPort | key.FieldProto
		return TrackerKey{
			V4: key.Shape{Fields: all, SrcBits: 32, DstBits: 32},
			V6: key.Shape{Fields: all | key.FieldV6, SrcBits: 128, DstBits: 128},
		}, nil
	}
	side, length, isPrefix := strings.Cut(s, "/")
	bits4, bits6 := 32, 128
	if isPrefix {
		n, err := strconv.Atoi(length)
		if err != nil || n < 1 || n > 32 {
			return TrackerKey{}, fmt.Errorf("%q: want a prefix length from 1 to 32", s)
		}
		bits4, bits6 = n, 2*n
	}
	k := TrackerKey{V6: key.Shape{Fields: key.FieldV6}}
	if side == "src" {
		k.V4.SrcBits, k.V6.SrcBits = uint8(bits4), uint8(bits6)
	} else {
		k.V4.DstBits, k.V6.DstBits = uint8(bits4), uint8(bits6)
	}
	return k, nil
}

func formatTrackerKey(k TrackerKey) string {
	side, bits4, bits6 := "src", k.V4.SrcBits, k.V6.SrcBits
	if bits4 == 0 {
		side, bits4, bits6 = "dst", k.V4.DstBits, k.V6.DstBits
	}
	switch {
	case k.V4.Tuple():
		return "flow"
	case bits6 == 128:
		return side
	}
	return fmt.Sprintf("%s/%d", side, bits4)
}

func (k TrackerKey) String() string { return formatTrackerKey(k) }

func (t Threshold) String() string { return formatThreshold(t) }

func parseAddress(s string) (Address, error) {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		var n int
		if n, err = strconv.Atoi(port); n < 1 || n > 65535 {
			err = errors.New("no such port")
		}
	}
	if err != nil {
		return "", fmt.Errorf("%q: want host:port, as in 127.0.0.1:9477 or [::1]:9477", s)
	}
	return Address(s), nil
}

// ParseGroup reads a multicast group that routers forward.
func ParseGroup(s string) (Group, error) {
	a, err := netip.ParseAddr(s)
	if err == nil {
		err = multicast.Check(a)
	}
	if err != nil {
		return Group{}, fmt.Errorf("%q: %w", s, err)
	}
	return Group(a), nil
}

func (g Group) String() string { return netip.Addr(g).String() }

func parseURL(s string) (URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("malformed URL")
	}
	if u.Host == "" {
		return "", errors.New("URL without a host")
	}
	return URL(s), nil
}

// rune is the separator, or 0.
func (s Separator) rune() rune {
	for _, r := range s {
		return r
	}
	return 0
}

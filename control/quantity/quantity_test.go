package quantity

import (
	"encoding"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// text has the methods of every quantity.
type text[T any] interface {
	*T
	encoding.TextUnmarshaler
	encoding.TextMarshaler
}

func parse[T any, P text[T]](s string) (v T, err error) {
	err = P(&v).UnmarshalText([]byte(s))
	return v, err
}

// reads checks what a text is read as, and how that is written.
func reads[T comparable, P text[T]](t *testing.T, from string, want T, written string) {
	t.Helper()
	v, err := parse[T, P](from)
	if err != nil || v != want {
		t.Errorf("%q is read as %v, %v; want %v", from, v, err, want)
		return
	}
	if text, err := P(&v).MarshalText(); err != nil || string(text) != written {
		t.Errorf("%q is written %q, %v; want %q", from, text, err, written)
	}
	if again, err := parse[T, P](written); err != nil || again != want {
		t.Errorf("%q, written %q, is read as %v, %v", from, written, again, err)
	}
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		from    string
		want    Rate
		written string
	}{
		{"50kpps", Rate{50e3, Packets}, "50kpps"},
		{"50Kpps", Rate{50e3, Packets}, "50kpps"},
		{"1Mbit/s", Rate{1e6, Bits}, "1Mbit/s"},
		{"1.5Mbps", Rate{1.5e6, Bits}, "1.5Mbit/s"},
		{"125MB/s", Rate{125e6, Bytes}, "125MB/s"},
		{"10k/s", Rate{10e3, AnyUnit}, "10k/s"},
		{"10000/s", Rate{10e3, AnyUnit}, "10k/s"},
		{"12.5M/s", Rate{12.5e6, AnyUnit}, "12.5M/s"},
		{"1234567pps", Rate{1234567, Packets}, "1234567pps"},
		{"0.5/s", Rate{0.5, AnyUnit}, "0.5/s"},
		{"0/s", Rate{}, "0/s"},
		{"1e6pps", Rate{1e6, Packets}, "1Mpps"},
		{"1Tbit/s", Rate{1e12, Bits}, "1Tbit/s"},
		{"1000Tbit/s", Rate{MaxRate, Bits}, "1000Tbit/s"},
	} {
		reads(t, c.from, c.want, c.written)
	}
	if got := (Rate{10e6, Bits}).PerSecond(); got != 1.25e6 {
		t.Errorf("10Mbit/s are %v bytes a second", got)
	}
	if got := (Rate{10e6, Bytes}).PerSecond(); got != 10e6 {
		t.Errorf("10MB/s are %v bytes a second", got)
	}
}

func TestDuration(t *testing.T) {
	for _, c := range []struct {
		from    string
		want    time.Duration
		written string
	}{
		{"1d", 24 * time.Hour, "1d"},
		{"36h", 36 * time.Hour, "1d12h"},
		{"1d12h", 36 * time.Hour, "1d12h"},
		{"1.5d", 36 * time.Hour, "1d12h"},
		{"0.1d", 144 * time.Minute, "2h24m"},
		{"90s", 90 * time.Second, "1m30s"},
		{"1h", time.Hour, "1h"},
		{"1h30m", 90 * time.Minute, "1h30m"},
		{"1h5s", time.Hour + 5*time.Second, "1h0m5s"},
		{"10m", 10 * time.Minute, "10m"},
		{"500ms", 500 * time.Millisecond, "500ms"},
		{"1d500ms", 24*time.Hour + 500*time.Millisecond, "1d500ms"},
		{"1.5us", 1500, "1.5µs"},
		{"0", 0, "0s"},
		{"0s", 0, "0s"},
		{"720h", 720 * time.Hour, "30d"},
		{"106751d23h47m16.854775807s", math.MaxInt64, "106751d23h47m16.854775807s"},
	} {
		reads(t, c.from, Duration(c.want), c.written)
	}
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		from    string
		want    Size
		written string
	}{
		{"65536", 65536, "64KiB"},
		{"64KiB", 65536, "64KiB"},
		{"1.5GiB", 3 << 29, "1536MiB"},
		{"32MB", 32e6, "31250KiB"},
		{"10kB", 10e3, "10kB"},
		{"10KB", 10e3, "10kB"},
		{"512B", 512, "512"},
		{"0", 0, "0"},
		{"8192TiB", maxInteger, "8192TiB"},
	} {
		reads(t, c.from, c.want, c.written)
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		from    string
		want    Count
		written string
	}{
		{"2000", 2000, "2k"},
		{"64k", 64000, "64k"},
		{"10M", 10e6, "10M"},
		{"1.5M", 1.5e6, "1500k"},
		{"1e7", 1e7, "10M"},
		{"65536", 65536, "65536"},
		{"0", 0, "0"},
		{"9007199254740992", maxInteger, "9007199254740992"},
	} {
		reads(t, c.from, c.want, c.written)
	}
}

func TestShare(t *testing.T) {
	for _, c := range []struct {
		from    string
		want    Share
		written string
	}{
		{"0", 0, "0%"}, {"0.000", 0, "0%"}, {"1", 1, "100%"}, {"0.05", 0.05, "5%"}, {"5%", 0.05, "5%"},
		{"33.3333%", 0.333333, "33.3333%"}, {"0.1%", 0.001, "0.1%"}, {"1e-4", 1e-4, "0.01%"},
		{"0.00001%", 1e-7, "0.00001%"}, {"100.0%", 1, "100%"},
		{"0.123456789012345678", 0.123456789012345678, "12.345678901234568%"},
	} {
		reads(t, c.from, c.want, c.written)
	}
}

// TestRefuses states what is said of text that is no quantity.
func TestRefuses(t *testing.T) {
	long := strings.Repeat("9", MaxText+1)
	for _, c := range []struct {
		what  string
		parse func(string) error
		texts map[string]string // and part of the error
	}{
		{"rate", refusal[Rate], map[string]string{
			"": "want a number a second", "fast": "want", "-1/s": "want", "+1/s": "want", "NaN/s": "want", "Inf/s": "want", "0x1/s": "want",
			"5": "did you mean 5/s?", "10k": "did you mean 10k/s?", "10kHz": "want", "10mpps": "want", "1 k/s": "want", "1kpps ": "want",
			"10kpps,": "want", "1.pps": "want", ".5pps": "want", "1e9kpps": "", "1e15kpps": "1e-15 to 1e15", "1e99pps": "1e-15 to 1e15",
			"1e-16pps": "1e-15 to 1e15", long + "pps": "rate of 68 bytes"}},
		{"duration", refusal[Duration], map[string]string{
			"": "want", "3600": "did you mean 3600s?", "1.5": "did you mean 1.5s?", "-1s": "want", "+1s": "want", "1d-1h": "want", "1d+1h": "want",
			"1d12": "want", "1w": "want", "d": "want", "1dd": "want", "1d1d": "want", "1h1d": "want", "NaNd": "want",
			"106752d": "292 years", "106751d24h": "292 years", "300000000h": "want", "1e9d": "292 years", long: "duration of 65 bytes"}},
		{"size", refusal[Size], map[string]string{
			"": "want", "64M": "did you mean 64MiB?", "64k": "did you mean 64KiB?", "-1": "want", "1.5": "whole number", "0.3KiB": "whole number",
			"1 MB": "want", "1Mb": "want", "8193TiB": "up to 2^53", "9007199254740993": "up to 2^53", "1e99": "up to 2^53", "1e999": "want",
			"9007199254740992.5": "whole number", long: "size of 65 bytes"}},
		{"count", refusal[Count], map[string]string{
			"": "want", "-1": "want", "1.5": "want", "1.0001k": "want", "1KiB": "want", "9007199254740993": "2^53", "1e99": "2^53",
			"10 M": "want", long: "number of 65 bytes"}},
		{"share", refusal[Share], map[string]string{
			"": "want", "-1": "want", "101%": "want 0% to 100%", "5": "did you mean 5%?", "NaN": "want", "NaN%": "want", "Inf": "want",
			"5 %": "want", "5%%": "want", "1e-16": "want", "1e9": "want", long: "share of 65 bytes"}},
	} {
		for text, want := range c.texts {
			err := c.parse(text)
			if want == "" {
				if err != nil {
					t.Errorf("%s %q: %v", c.what, text, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v; want an error with %q", c.what, text, err, want)
			}
		}
	}
}

// refusal returns the error of reading a text, and panics if what was there before
// is lost.
func refusal[T comparable, P text[T]](s string) error {
	var zero T
	v, err := parse[T, P](s)
	if err != nil && v != zero {
		panic("a refused text has changed its receiver")
	}
	return err
}

// TestRoundTrip reads what is written of random values.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	scale := func(most float64) float64 { return math.Min(most, math.Pow(10, r.Float64()*math.Log10(most))) }
	for range 20_000 {
		again(t, Rate{scale(MaxRate), Unit(r.IntN(4))})
		again(t, Rate{math.Round(scale(1e6)) * 1e3, Unit(r.IntN(4))})
		again(t, Duration(r.Int64N(math.MaxInt64)))
		again(t, Duration(r.IntN(1e6))*Duration(time.Second))
		again(t, Size(scale(maxInteger)))
		again(t, Size(r.Int64N(1e3))<<(10*r.IntN(4)))
		again(t, Count(scale(maxInteger)))
		again(t, Share(r.Float64()))
		again(t, Share(least*scale(1/least)))
	}
}

func again[T comparable, P text[T]](t *testing.T, v T) {
	t.Helper()
	s, _ := P(&v).MarshalText()
	if got, err := parse[T, P](string(s)); err != nil || got != v {
		t.Fatalf("%#v is written %s, which is read as %#v, %v", v, s, got, err)
	}
}

// TestJSON checks that JSON contains the same text.
func TestJSON(t *testing.T) {
	type all struct {
		R Rate
		D Duration
		S Size
		C Count
		P Share
	}
	v := all{Rate{50e3, Packets}, Duration(time.Hour), 1 << 20, 1000, 0.01}
	text, err := json.Marshal(v)
	if want := `{"R":"50kpps","D":"1h","S":"1MiB","C":"1k","P":"1%"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	var got all
	if err := json.Unmarshal(text, &got); err != nil || got != v {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzUnmarshal checks that what is read is written so that it is read again, in
// bounded text, and that what is refused leaves no trace.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{"50kpps", "1.5Mbit/s", "1e-9/s", "1d12h", "90s", "64MiB", "10M", "5%", "1e-4", "9007199254740992", "1e99TiB", "NaN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzz[Rate](t, s)
		fuzz[Duration](t, s)
		fuzz[Size](t, s)
		fuzz[Count](t, s)
		fuzz[Share](t, s)
	})
}

func fuzz[T comparable, P text[T]](t *testing.T, s string) {
	v, err := parse[T, P](s)
	if err != nil {
		if len(err.Error()) > 4*MaxText+200 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		return
	}
	again[T, P](t, v)
}

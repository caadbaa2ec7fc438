package feed

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/quantity"
	"weir/tests/long"
)

// bombs are small feeds that would take gigabytes. The limits are the defaults of a
// host, or a control group, with bombLimit.
var bombs = []struct {
	name   string
	format string // in its text form, and the column or path
	write  func(w io.Writer)
	want   string // in the error, "" for none
}{
	{"one IPv6 range", "plain", repeat("1::1-fffe:ffff:ffff:ffff:ffff:ffff:ffff:fffe\n", 500_000), ""},
	{"two IPv6 ranges", "plain", repeat("1::1-ffff::1\n1::1-ffff::2\n", 500_000), ""},
	{"short IPv6 ranges", "plain", repeat("::1-f::\n", 3_000_000), ""},
	{"one IPv4 range", "plain", repeat("0.0.0.1-255.255.255.254\n", 1_000_000), ""},
	{"short IPv4 ranges", "plain", repeat("192.0.2.1-192.0.2.2\n192.0.2.2-192.0.2.3\n", 5_000_000), tooMany},
	{"different ranges", "plain", different(20_000, func(b []byte, i int) []byte {
		return fmt.Appendf(b, "2001:db8:%x::1-fffe:ffff:ffff:ffff:ffff:ffff:ffff:%x\n", i, 0xfffe-i)
	}), tooMany},
	{"one flow", "plain", repeat("any 1.2.3.4:* > 5.6.7.8:*\n", 1_000_000), ""},
	{"flows", "plain", repeat("any 1.2.3.4:* > 5.6.7.8:*\nany 1.2.3.4:* > 5.6.7.9:*\n", 5_000_000), tooMany},
	{"addresses up to the limit", "plain", different(bombLimit/bytesPerEntry, func(b []byte, i int) []byte {
		return fmt.Appendf(b, "2001:db8::%x:%x\n", i>>16, i&0xffff)
	}), ""},
	{"ranges in csv", "csv", repeat("::1-f::\n", 3_000_000), ""},
	{"commas", "csv", repeat(",", 200_000_000), "a record of more than"},
	{"open quote", "csv", repeat("\"", 1, repeat("a\n", 100_000_000)), "a record of more than"},
	{"quotes", "csv", repeat("\"\n", 10_000_000), "too many bad lines"},
	{"quoted lines", "csv", repeat("\"\n\",", 60_000_000), "a record of more than"},
	{"blank lines", "csv", repeat("1.2.3.4\n\n\n\n1.2.3.5\n\n\n\n", 10_000_000), tooMany},
	{"long string", "json", repeat("\"a", 1, repeat("a", 200_000_000)), "a record of more than"},
	{"blank document", "json", repeat("\n", 250_000_000), "a record of more than"},
	{"arrays", "json", repeat("[", 200_000_000), "nested deeper"},
	{"strings", "json", repeat("[", 1, repeat("\"::1\",\n\"::2\",\n", 20_000_000)), tooMany},
	{"words", "nftables", repeat("a ", 100_000_000), "words without an end"},
	{"long word", "nftables", repeat("a", 200_000_000), "a record of more than"},
	{"blocks", "nftables", repeat("table {", 30_000_000), "nested deeper"},
	{"JSON of nft", "nftables", repeat(`{"nftables": [{"element": {"name": "b", "elem": ["192.0.2.1"`, 1, repeat(`,"192.0.2.1","192.0.2.2"`, 1_500_000)), tooMany},
	{"an element of nft", "nftables", repeat(`{"nftables": [{"element": {"name": "b", "elem": [`, 1, repeat("[", 200_000_000)), "exceeded max depth"},
	{"sets", "ipset", different(1_000_000, func(b []byte, i int) []byte {
		return fmt.Appendf(b, "create %d x\n", i)
	}), "more than 65535 sets"},
	{"indicators", "stix", repeat(`{"objects":[{}`, 1, repeat(`,{"type":"indicator","pattern":"[ipv4-addr:value IN ('192.0.2.1','192.0.2.2','192.0.2.3','192.0.2.4')]"}`, 2_000_000)), "bytes of entries"},
	{"a pattern", "stix", repeat(`{"objects":[{"type":"indicator","pattern":"`, 1, repeat("[", 200_000_000)), "a record of more than"},
	{"patterns", "stix", repeat(`{"objects":[{}`, 1, repeat(`,{"type":"indicator","pattern":"[(((((((((("}`, 400_000)), "unexpected EOF"},
	{"objects in STIX", "stix", repeat(`{"x":`, 40_000_000), "nested deeper"},
	{"empty decisions", "crowdsec", repeat(`{"deleted":[],"new":[`, 1, repeat("{},", 3_000_000)), "unexpected EOF"},
	{"one decision", "crowdsec", repeat(`{"deleted":[],"new":[`, 1, repeat(`{"scope":"ip","type":"ban","value":"::","duration":"1h"},`, 1_000_000)), fmt.Sprintf("more than %d decisions", bombLimit/bytesPerEntry/5)},
	{"decisions up to the limit", "crowdsec", repeat(`{"deleted":null,"new":[{}`, 1, different(bombLimit/bytesPerEntry/5, func(b []byte, i int) []byte {
		return fmt.Appendf(b, `,{"scope":"ip","type":"ban","value":"2001:db8:1234:1234:1234:1234:%x:%x","duration":"1h"}`, i>>16, i&0xffff)
	}), repeat("]}", 1)), ""},
	{"long field", "crowdsec", repeat(`{"deleted":[],"other":"`, 1, repeat("a", 200_000_000)), "a record of more than"},
}

const bombLimit = 256 << 20 // bytes

var tooMany = fmt.Sprintf("more than %d entries", bombLimit/bytesPerEntry)

// repeat returns a function that writes a text n times, compressed, and then what others
// write. A stream of gzip may consist of several, so that a block is compressed once only.
func repeat(text string, n int, then ...func(io.Writer)) func(io.Writer) {
	return func(w io.Writer) {
		block := bytes.Repeat([]byte(text), min(n, 1<<20/len(text)+1))
		once := compress(block)
		left := len(text) * n
		for ; left >= len(block); left -= len(block) {
			_, _ = w.Write(once)
		}
		_, _ = w.Write(compress(block[:left]))
		for _, f := range then {
			f(w)
		}
	}
}

// different returns a function that writes n texts, compressed.
func different(n int, text func(b []byte, i int) []byte) func(io.Writer) {
	return func(w io.Writer) {
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		var b []byte
		for i := range n {
			if b = text(b, i); len(b) > 1<<16 {
				_, _ = z.Write(b)
				b = b[:0]
			}
		}
		_, _ = z.Write(b)
		_ = z.Close()
	}
}

func compress(text []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	_, _ = z.Write(text)
	_ = z.Close()
	return b.Bytes()
}

// TestBombs reads each bomb in a process of its own, and looks at the most memory
// that it took.
func TestBombs(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	if source := os.Getenv("WEIR_TEST_BOMB"); source != "" {
		readBomb(source, os.Getenv("WEIR_TEST_FORMAT"))
		return
	}
	for _, bomb := range bombs {
		t.Run(bomb.name, func(t *testing.T) {
			source := filepath.Join(t.TempDir(), "bomb")
			f, err := os.Create(source)
			if err != nil {
				t.Fatal(err)
			}
			bomb.write(f)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			from := source
			if bomb.format == "crowdsec" {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Encoding", "gzip")
					http.ServeFile(w, r, source)
				}))
				defer s.Close()
				from = s.URL
			}
			c := exec.Command(os.Args[0], "-test.run=^TestBombs$")
			c.Env = append(os.Environ(), "GOGC=100", "WEIR_TEST_BOMB="+from, "WEIR_TEST_FORMAT="+bomb.format)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%.2000s", err, out)
			}
			var peak int
			_, status, _ := strings.Cut(string(out), "VmHWM:")
			if _, err := fmt.Sscan(status, &peak); err != nil {
				t.Fatalf("no VmHWM in %.2000s", out)
			}
			peak <<= 10
			t.Logf("%d MiB", peak>>20)
			if peak > bombLimit*3/4 { // the filters need some, too
				t.Errorf("%d MiB", peak>>20)
			}
			result, _, _ := strings.Cut(string(out), "\n")
			if bomb.want == "" && result != "<nil>" || !strings.Contains(result, bomb.want) || len(result) > 1000 {
				t.Errorf("got %.1000s, want %q", result, bomb.want)
			}
		})
	}
}

func readBomb(from, format string) {
	s := Source{File: Path(from), MaxBytes: DefaultMaxBytes, MaxCPU: quantity.Duration(time.Hour)}
	if strings.HasPrefix(from, "http") {
		s.File, s.URL = "", URL(from)
	}
	var kind Kind
	_ = kind.UnmarshalText([]byte(format))
	s.MaxEntries = quantity.Count(s.maxEntries(kind, int64(bombLimit)))
	c := Config{Name: "bomb", Spec: DefaultSpec(s)}
	c.Format.Kind = kind
	switch c.Format.Kind {
	case CSV:
		c.Format.Column = "1"
	case JSON:
		c.Format.Path = ".[]"
	}
	f, err := Open(context.Background(), c, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	// Memory is measured here; TestHostile bounds the work.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	outcomes, err := f.Fetch(ctx)
	if err == nil {
		err = outcomes[0].Err
	}
	fmt.Println(err)
	status, _ := os.ReadFile("/proc/self/status")
	fmt.Println(string(status))
}

// The default grows with memory, and is bounded for what others write.
func TestDefaultMaxEntries(t *testing.T) {
	if m := memory(); m < 64<<20 || m > 1<<50 {
		t.Errorf("%d bytes of memory", m)
	}
	const memoryLimit = 512 << 20
	const most = memoryLimit / bytesPerEntry
	for _, c := range []struct {
		Source
		kind   Kind
		memory int64
		want   int
	}{
		{Source{File: "/x"}, Plain, memoryLimit, most},
		{Source{Directory: "/x"}, CSV, memoryLimit, most},
		{Source{URL: "http://x"}, Plain, memoryLimit, most},
		{Source{URL: "http://x"}, CrowdSec, memoryLimit, most / 5},
		{Source{File: "/x"}, Plain, 100 * memoryLimit, 100 * most},
		{Source{URL: "http://x"}, Plain, 100 * memoryLimit, maxURLEntries},
		{Source{URL: "http://x", MaxEntries: 3e7}, Plain, memoryLimit, 3e7},
		{Source{File: "/x", MaxEntries: 5}, Plain, memoryLimit, 5},
	} {
		if got := c.maxEntries(c.kind, c.memory); got != c.want {
			t.Errorf("%v, %v, %d bytes: %d, want %d", c.Source, c.kind, c.memory, got, c.want)
		}
	}
}

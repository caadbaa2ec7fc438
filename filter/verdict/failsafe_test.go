package verdict

import (
	"net/netip"
	"strings"
	"testing"
)

// A prefix of a whole family is refused however it is written, and the longest that is shorter than one is
// not.
func TestFailsafePrefixes(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1":           "192.0.2.1/32",
		"192.0.2.0/24":        "192.0.2.0/24",
		"128.0.0.0/1":         "128.0.0.0/1",
		"2001:db8::/32":       "2001:db8::/32",
		"8000::/1":            "8000::/1",
		"::ffff:192.0.2.1":    "192.0.2.1/32",
		"::ffff:128.0.0.0/97": "128.0.0.0/1",
		"0.0.0.0/0":           "every source would pass",
		"::/0":                "every source would pass",
		"::ffff:0:0/96":       "every source would pass",
		"192.0.2.1/24":        "did you mean 192.0.2.0/24?",
		"fe80::1%eth0":        "want an address or a prefix",
		"fe80::%eth0/64":      "want an address or a prefix",
		"x":                   "want an address or a prefix",
	} {
		var p FailsafePrefix
		err := p.UnmarshalText([]byte(text))
		if prefix, e := netip.ParsePrefix(want); e == nil && (err != nil || p.Prefix != prefix) || e != nil && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want %s", text, p, err, want)
		}
	}
}

func TestFailsafePorts(t *testing.T) {
	for text, want := range map[string]string{
		"tcp/22": "tcp/22", "22/tcp": "tcp/22", "9/tcp": "tcp/9", "0/udp": "udp/0", "udp/53": "udp/53", "sctp/65535": "sctp/65535", "tcp/0": "tcp/0",
		"22": "did you mean tcp/22?", "tcp/65536": "invalid port", "icmp/1": "invalid port", "tcp": "invalid port", "tcp/": "invalid port", "": "invalid port", "65536": "invalid port",
	} {
		var p FailsafePort
		err := p.UnmarshalText([]byte(text))
		if got := p.String(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}

package heavy

import (
	"strings"
	"testing"
	"time"

	"weir/filter/sketch"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		text, want string
	}{
		{"key=src", "key=src,unit=packets,share=0.01,interval=1s,action=report,memory=262144"},
		{"key=dst,unit=bytes,share=0.1%", "key=dst,unit=bytes,share=0.001,interval=1s,action=report,memory=262144"},
		{"key=flow,rate=10k/s,share=0.5", "key=flow,unit=packets,rate=10000/s,share=0.5,interval=1s,action=report,memory=262144"},
		{"key=src/24,rate=500,interval=10s,action=limit", "key=src/24,unit=packets,rate=500/s,interval=10s,action=limit,limit=500/s,for=10s,memory=262144"},
		{"action=block,key=src,for=5m,memory=1MiB", "key=src,unit=packets,share=0.01,interval=1s,action=block,for=5m0s,memory=1048576"},
		{"key=src,action=limit,limit=10/s,burst=2k", "key=src,unit=packets,share=0.01,interval=1s,action=limit,limit=10/s,burst=2000,for=10s,memory=262144"},
		{"key=src,share=0.2,action=limit,limit=1M/s", "key=src,unit=packets,share=0.2,interval=1s,action=limit,limit=1000000/s,for=10s,memory=262144"},
	} {
		s, err := Parse(test.text)
		if err != nil || s.String() != test.want {
			t.Errorf("%s: %v, %v; want %s", test.text, s, err, test.want)
			continue
		}
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Errorf("%v is read as %v, %v", s, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, reason := range map[string]string{
		"":                                 "NAME=VALUE",
		"unit=packets":                     "no key",
		"key=source":                       "want src, dst, flow",
		"key=src/0":                        "prefix length",
		"key=src/129":                      "prefix length",
		"key=src,key=dst":                  "twice",
		"key=src,unit=bits":                "want packets or bytes",
		"key=src,share=0":                  "share",
		"key=src,share=101%":               "share",
		"key=src,rate=fast":                "rate",
		"key=src,rate=0":                   "rate",
		"key=src,interval=1h":              "100ms to 1m0s",
		"key=src,action=drop":              "want report, limit or block",
		"key=src,limit=5/s":                "are for action=limit",
		"key=src,for=5s":                   "not report",
		"key=src,action=limit":             "limit=UNITS/s is missing",
		"key=src,action=limit,limit=1T":    "above",
		"key=src,memory=1":                 "4KiB",
		"key=src,colour=red":               "no \"colour\"",
		"key=src,share=0.1,threshold=10/s": "no \"threshold\"",
	} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), reason) || text != "" && !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, %v; want an error with %q", text, s, err, reason)
		}
	}
	if _, err := ParseShare("key=src,rate=10/s"); err == nil {
		t.Error("a rate is accepted for a capture")
	}
}

// The shapes of a key are of both families, and of one form.
func TestKeys(t *testing.T) {
	for text, want := range map[string]string{
		"src":     "src/32, ip6 src/128",
		"dst":     "dst/32, ip6 dst/128",
		"src/24":  "src/24, ip6 src/48",
		"dst/32":  "dst/32, ip6 dst/128",
		"src/28":  "src/28, ip6 src/56",
		"src/32":  "src/32, ip6 src/128",
		"src/48":  "src/32, ip6 src/48",
		"src/100": "src/32, ip6 src/100",
		"flow":    "src/32+dst/32+sport+dport+proto, ip6 src/128+dst/128+sport+dport+proto",
	} {
		s, err := Parse("key=" + text)
		tr := s.Tracker()
		if got := tr.V4.String() + ", " + tr.V6.String(); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestThreshold(t *testing.T) {
	for text, want := range map[string]sketch.Threshold{
		"key=src,rate=1000/s":                        {Units: 1000},
		"key=src,rate=1000/s,interval=100ms":         {Units: 100},
		"key=src,share=0.1":                          {Units: leastPackets, Share: 0.1},
		"key=src,share=0.1,unit=bytes,interval=10s":  {Units: 10 * leastBytes, Share: 0.1},
		"key=src,share=0.1,rate=5/s,interval=2s":     {Units: 10, Share: 0.1},
		"key=src,interval=2s,share=1%,action=report": {Units: 2 * leastPackets, Share: 0.01},
	} {
		s, err := Parse(text)
		if err != nil || s.Threshold() != want {
			t.Errorf("%s: %+v, %v; want %+v", text, s.Threshold(), err, want)
		}
	}
	s, err := ParseShare("key=src,share=0.001")
	if want := (sketch.Threshold{Share: 0.001}); err != nil || s.Threshold() != want {
		t.Errorf("of a capture: %+v, %v", s.Threshold(), err)
	}
	s, err = Parse("key=src,unit=bytes,rate=1M/s,action=limit,for=3s")
	if p := s.penalty(time.Second); err != nil || p.Until != 4*time.Second || p.Rate != 1e6 || p.Burst != 1e5 {
		t.Errorf("penalty %+v, %v", p, err)
	}
}

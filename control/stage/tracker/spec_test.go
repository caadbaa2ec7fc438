package tracker

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weir/control/quantity"
	"weir/filter/sketch"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"key=src":                           "key=src,interval=1s,threshold=1%,action=report,duration=1m,memory=256KiB",
		"key=dst,unit=bytes,threshold=0.1%": "key=dst,unit=bytes,interval=1s,threshold=0.1%,action=report,duration=1m,memory=256KiB",
		"key=flow,threshold=10k/s+50%":      "key=flow,interval=1s,threshold=10k/s+50%,action=report,duration=1m,memory=256KiB",
		"key=src/24,threshold=500pps,interval=10s,action=limit": "key=src/24,interval=10s,threshold=500pps,action=limit,duration=1m,memory=256KiB",
		"action=block,key=src,duration=1d12h,memory=1MiB":       "key=src,interval=1s,threshold=1%,action=block,duration=1d12h,memory=1MiB",
		"key=src,action=limit,limit=10/s,burst=2k":              "key=src,interval=1s,threshold=1%,action=limit,limit=10/s,burst=2k,duration=1m,memory=256KiB",
		"key=src,threshold=20%,action=limit,limit=10Mbit/s":     "key=src,interval=1s,threshold=20%,action=limit,limit=10Mbit/s,duration=1m,memory=256KiB",
	} {
		s, err := Parse(text)
		if err != nil || s.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, s, err, want)
			continue
		}
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Errorf("%v is read as %v, %v", s, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, reason := range map[string]string{
		"":                                     "NAME=VALUE",
		"key":                                  "NAME=VALUE",
		"unit=packets":                         "key is missing",
		"key=source":                           "want src, dst, flow",
		"key=":                                 "want src, dst, flow",
		"key=src/0":                            "prefix length",
		"key=src/129":                          "prefix length",
		"key=src/024x":                         "prefix length",
		"key=flow/24":                          "want src, dst, flow",
		"key=src,key=dst":                      "given twice",
		"key=src,unit=bits":                    "want packets or bytes",
		"key=src,threshold=0":                  "want a rate",
		"key=src,threshold=0%":                 "want more than 0",
		"key=src,threshold=101%":               "0% to 100%",
		"key=src,threshold=fast":               "want a number a second",
		"key=src,threshold=10000":              "want a rate",
		"key=src,threshold=0/s":                "want more than 0",
		"key=src,threshold=1%+2%":              "one of each",
		"key=src,threshold=1%+":                "want a rate",
		"key=src,threshold=1/s,interval=100ms": "less than one of the packets",
		"key=src,threshold=1MB/s,unit=packets": "threshold: 1MB/s counts bytes, but the tracker counts packets",
		"key=src,interval=5m":                  "interval: 5m is not between 100ms and 1m",
		"key=src,action=drop":                  "want report, limit or block",
		"key=src,limit=5/s":                    "go with action limit",
		"key=src,burst=5":                      "go with action limit",
		"key=src,action=limit":                 "needs a limit",
		"key=src,action=limit,limit=0.5/s":     "limit: a limit of 0.5/s is not between 1/s and 128G/s",
		"key=src,action=limit,limit=1T/s":      "limit: a limit of 1T/s is not between",
		"key=src,action=block,duration=0s":     "duration: 0s is not between 1s and 30d",
		"key=src,duration=3600":                "did you mean 3600s?",
		"key=src,memory=1":                     "memory: 1 is not between 4KiB and 1GiB",
		"key=src,colour=red":                   "unknown name \"colour\": want key, unit,",
		"key=" + strings.Repeat("s", 2000):     "bytes are too many",
	} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), reason) || text != "" && !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, %v; want an error with %q", text, s, err, reason)
		}
	}
	for text, reason := range map[string]string{
		"key=src,threshold=10/s":           "want a share",
		"key=src,threshold=10/s+1%":        "want a share",
		"key=src,action=block":             "unknown name \"action\"",
		"key=src,threshold=1%,interval=1s": "unknown name \"interval\"",
	} {
		if s, err := ParseCapture(text); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("capture, %q: %v, %v; want an error with %q", text, s, err, reason)
		}
	}
	if s, err := ParseCapture("key=dst,unit=bytes,threshold=0.1%"); err != nil || s.Memory != captureMemory || s.Threshold.Share != 0.001 {
		t.Errorf("capture: %v, %v", s, err)
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
		"src/128": "src/32, ip6 src/128",
		"flow":    "src/32+dst/32+sport+dport+proto, ip6 src/128+dst/128+sport+dport+proto",
	} {
		s, err := Parse("key=" + text)
		tr := s.Counting()
		if got := tr.V4.String() + ", " + tr.V6.String(); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"dst/32", "dst/128"} { // one name for one tracker
		if s, err := Parse("key=" + text); err != nil || s.Key != "dst" {
			t.Errorf("%s: %v, %v", text, s.Key, err)
		}
	}
}

func TestThreshold(t *testing.T) {
	for text, want := range map[string]sketch.Threshold{
		"key=src,threshold=1000/s":                      {Units: 1000},
		"key=src,threshold=1kpps,interval=100ms":        {Units: 100},
		"key=src,threshold=8Mbit/s":                     {Units: 1e6},
		"key=src,threshold=10%":                         {Units: leastPackets, Share: 0.1},
		"key=src,threshold=10%,unit=bytes,interval=10s": {Units: 10 * leastBytes, Share: 0.1},
		"key=src,threshold=5/s+10%,interval=2s":         {Units: 10, Share: 0.1},
		"key=src,interval=2s":                           {Units: 2 * leastPackets, Share: 0.01},
		"key=src,threshold=0.00001%":                    {Units: leastPackets, Share: 1e-7},
	} {
		s, err := Parse(text)
		if err != nil || s.threshold(0) != want {
			t.Errorf("%s: %+v, %v; want %+v", text, s.threshold(0), err, want)
		}
	}
}

func TestPenalty(t *testing.T) {
	for text, want := range map[string]struct {
		rate, burst float64
		until       time.Duration
	}{
		"key=src,threshold=1MB/s,action=limit,duration=3s":       {1e6, 1e6, 4 * time.Second},
		"key=src,threshold=10kpps,action=limit,limit=100pps":     {100, 100, 61 * time.Second},
		"key=src,unit=bytes,threshold=8kbit/s,action=limit":      {1e3, leastBurst, 61 * time.Second},
		"key=src,threshold=1%,action=limit,limit=8Mbps,burst=2k": {1e6, 2000, 61 * time.Second},
		"key=src,action=block,duration=1d":                       {0, 0, 24*time.Hour + time.Second},
	} {
		s, err := Parse(text)
		if p := s.penalty(time.Second); err != nil || p.Rate != want.rate || p.Burst != want.burst || p.Until != want.until {
			t.Errorf("%s: %+v, %v; want %+v", text, p, err, want)
		}
	}
}

// What a tracker counts follows from its unit, otherwise from its rates.
func TestCounts(t *testing.T) {
	for text, want := range map[string]struct {
		unit   sketch.Unit
		limits string
	}{
		"key=src":                                                      {sketch.Packets, "100pps and 1% of packets"},
		"key=src,unit=bytes":                                           {sketch.Bytes, "100kB/s and 1% of bytes"},
		"key=src,unit=bytes,threshold=10k/s":                           {sketch.Bytes, "10kB/s"},
		"key=src,threshold=10k/s":                                      {sketch.Packets, "10kpps"},
		"key=src,threshold=10Mbit/s":                                   {sketch.Bytes, "10Mbit/s"},
		"key=src,threshold=10Mbit/s+1%":                                {sketch.Bytes, "10Mbit/s and 1% of bytes"},
		"key=src,threshold=1%,action=limit,limit=10MB/s":               {sketch.Bytes, "100kB/s and 1% of bytes"},
		"key=src,threshold=10Mbit/s,unit=bytes,action=limit,limit=5/s": {sketch.Bytes, "10Mbit/s"},
	} {
		s, err := Parse(text)
		if err != nil || s.Counts() != want.unit || s.Limits() != want.limits {
			t.Errorf("%s: %v, %q, %v; want %+v", text, s.Counts(), s.Limits(), err, want)
		}
	}
}

// TestValidate checks that all errors in a tracker are found at once, each in its
// field.
func TestValidate(t *testing.T) {
	s := DefaultSpec("src")
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	s.Interval, s.Memory, s.Limit = 0, 1, quantity.Rate{Value: 1}
	var errs quantity.FieldErrors
	if err := s.Validate(); !errors.As(err, &errs) {
		t.Fatal(err)
	}
	var fields []string
	for _, e := range errs {
		fields = append(fields, e.Field)
	}
	if got := strings.Join(fields, " "); got != "interval  memory" {
		t.Errorf("errors in %q: %v", got, errs)
	}
}

// Random trackers are read as they are written.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	valid := 0
	for range 5000 {
		text := "key=" + pick("src", "dst", "flow", "src/24", "dst/48") + pick("", ",unit=packets", ",unit=bytes") +
			",threshold=" + pick("1%", "0.123%", "50kpps", "1.5Mbit/s", "10k/s", "125MB/s", "100pps+2%") +
			",action=" + pick("report", "block", "limit", "limit,limit=1kpps", "limit,limit=12.5MB/s,burst=64k", "limit,limit=7/s") +
			pick("", ",interval=100ms", ",interval=1.5s") + pick("", ",duration=1d", ",duration=90s") + pick("", ",memory=10MB")
		s, err := Parse(text)
		if err != nil {
			continue
		}
		valid++
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Fatalf("%s: %v is read as %v, %v", text, s, again, err)
		}
	}
	if valid < 1000 {
		t.Errorf("%d trackers are valid", valid)
	}
}

// FuzzParse checks that what is read is valid, and is read again as it is written.
func FuzzParse(f *testing.F) {
	f.Add("key=src,threshold=50kpps+1%,action=limit,limit=1kpps,burst=2k,duration=1d,memory=1MiB,interval=2s,unit=packets")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		_, _ = s.Counting(), s.penalty(0)
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Errorf("%v is read as %v, %v", s, again, err)
		}
	})
}

package top

import (
	"strings"
	"testing"
	"time"
)

func TestShorten(t *testing.T) {
	const flow = "tcp [2001:db8:85a3:1111:ac1f:8a2e:3700:7334]:54321 > [2001:db8::53]:443"
	for _, c := range []struct {
		key  string
		room int
		want string
	}{
		{"192.0.2.1", 9, "192.0.2.1"},
		{"192.0.2.1", 8, "192.…2.1"},
		{"192.0.2.1", 3, "19…"},
		{"192.0.2.1", 0, ""},
		{longAddress, 38, longAddress},
		{longAddress, 20, "2001:db8:8…3700:7334"},
		{"2001:db8:85a3:1111:8000::/65", 20, "2001:db8:8…8000::/65"},
		{flow, len(flow), flow},
		{flow, 60, "tcp [2001:db8:85a3…a2e:3700:7334]:54321 > [2001:db8::53]:443"},
		{flow, 12, "tcp [2…]:443"},
		{"表格表格", 5, "表格…"},
	} {
		got := shorten(c.key, c.room)
		if got != c.want || width(got) > c.room {
			t.Errorf("%q in %d: got %q, want %q", c.key, c.room, got, c.want)
		}
	}
}

// It never exceeds the room, however small.
func TestShortenFits(t *testing.T) {
	for _, key := range []string{
		longAddress, "tcp [" + longAddress + "]:54321 > [" + longAddress + "]:443", "any 10.0.0.0/8:* > 192.0.2.1:53",
		"one > two", "> 192.0.2.1", " > ", "表格 表格 > 表格:1",
	} {
		for room := range 120 {
			if got := shorten(key, room); width(got) > room {
				t.Errorf("%q in %d: %q has %d", key, room, got, width(got))
			}
		}
	}
}

func TestFill(t *testing.T) {
	for _, c := range []struct {
		l    line
		to   int
		want string
	}{
		{nil, 3, "   "},
		{say(strong, "ab").add(faint, "cd"), 6, "abcd  "},
		{say(strong, "ab").add(faint, "cd"), 4, "abcd"},
		{say(strong, "ab").add(faint, "cd"), 3, "ab…"},
		{say(strong, "ab").add(faint, "cd"), 2, "ab"},
		{say(strong, "ab"), 0, ""},
		{say(strong, "表格"), 3, "表…"},
		{say(strong, "表格"), 2, "… "},
		{say(strong, "ab"), -1, ""},
	} {
		if got := c.l.fill(c.to).text(); got != c.want {
			t.Errorf("%q to %d: got %q, want %q", c.l.text(), c.to, got, c.want)
		}
	}
}

func TestPaint(t *testing.T) {
	l := say(strong, "a").add(plain, "b").add(drops, "c")
	if got, want := l.paint(), "\x1b[1ma\x1b[mb\x1b[31mc\x1b[m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := l.text(); got != "abc" {
		t.Errorf("as text: %q", got)
	}
}

func TestUnits(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{pps(0), "0 pps"}, {pps(0.25), "0.2 pps"}, {pps(1), "1 pps"}, {pps(1.5), "1.5 pps"}, {pps(12.6), "13 pps"}, {pps(999.4), "999 pps"},
		{pps(999.6), "1.00 kpps"}, {pps(1236), "1.24 kpps"}, {pps(9.996e3), "10.0 kpps"}, {pps(12.36e3), "12.4 kpps"},
		{pps(99.96e3), "100 kpps"}, {pps(312e3), "312 kpps"}, {pps(1.24e6), "1.24 Mpps"}, {pps(148.8e6), "149 Mpps"},
		{bps(426e6), "3.41 Gbps"}, {bps(0), "0 bps"}, {count(1204331), "1.20M"}, {count(12), "12"},
		{percent(0), "0.0 %"}, {percent(0.0001), "<0.1 %"}, {percent(0.0006), "0.1 %"}, {percent(0.004), "0.4 %"}, {percent(0.251), "25.1 %"}, {percent(0.9999), "100 %"}, {percent(1), "100 %"},
		{rate(0), "0"}, {rate(1.23e-12), "1.2e-12"},
		{lasting(0), "0s"}, {lasting(-time.Second), "0s"}, {lasting(61 * time.Second), "1m 1s"}, {lasting(time.Hour), "1h 0m"}, {lasting(100 * time.Hour), "4d 4h"},
		{remaining(-1), "0s"}, {remaining(1), "1s"}, {remaining(59 * time.Second), "59s"}, {remaining(60 * time.Second), "60s"},
		{remaining(100 * time.Second), "2m"}, {remaining(99 * time.Minute), "99m"}, {remaining(100 * time.Minute), "2h"}, {remaining(1000 * time.Hour), "42d"},
		{bar(0, 10), ""}, {bar(1e-9, 10), "╸"}, {bar(0.5, 10), "━━━━━"}, {bar(0.55, 10), "━━━━━╸"}, {bar(2, 3), "━━━"}, {bar(-1, 3), ""},
		{trend([]float64{9, 0, 1, 4, 8}, 8, 4), " ▁▄█"}, {trend(nil, 0, 4), ""}, {trend([]float64{1}, 0, 4), " "},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	// The columns rely on this.
	for x := 1e-3; x < 1e14; x *= 1.0917 {
		if w := width(pps(x)); w > 9 {
			t.Errorf("%q has %d characters", pps(x), w)
		}
		if w := width(bps(x / 8)); w > 9 {
			t.Errorf("%q has %d characters", bps(x/8), w)
		}
		if w := width(count(x)); w > 6 {
			t.Errorf("%q has %d characters", count(x), w)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[1m\n\xffé\u0301表\u202e"); got != "a?[1m??é表" {
		t.Errorf("got %q", got)
	}
	if got := strings.Repeat("x", 3); printable(got) != got {
		t.Error("plain text is changed")
	}
}

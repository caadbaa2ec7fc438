package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"weir/control/config"
	"weir/tests/seed"
)

// A configuration that flags make is printed as one that is read back the same.
func TestPrintedFlags(t *testing.T) {
	r := seed.New(t)
	accepted := 0
	for range 1000 {
		flags := randomFlags(r)
		c := new(cobra.Command)
		v := newConfigFlags(c)
		v.attachFlags(c)
		if err := c.ParseFlags(flags); err != nil {
			continue
		}
		want, err := v.Read()
		if err != nil {
			continue
		}
		accepted++
		var printed bytes.Buffer
		if err := want.Print(&printed); err != nil {
			if !utf8.ValidString(strings.Join(flags, "")) && strings.Contains(err.Error(), "UTF-8") && printed.Len() == 0 {
				continue
			}
			t.Fatalf("%q: %v", flags, err)
		}
		got, err := config.Parse("printed", printed.Bytes())
		if err != nil {
			t.Fatalf("%q: %v\n%s", flags, err, printed.String())
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q:\n%+v\nwant\n%+v\n%s", flags, got, want, printed.String())
		}
	}
	if accepted < 200 {
		t.Errorf("only %d configurations are accepted", accepted)
	}
}

// randomFlags returns flags of which most are accepted.
func randomFlags(r *rand.Rand) (flags []string) {
	one := func(all ...string) string { return all[r.IntN(len(all))] }
	// Any number of digits, any power of ten.
	number := func() string {
		if r.IntN(2) == 0 {
			return fmt.Sprint(1 + r.IntN(1000))
		}
		return fmt.Sprintf("%.*g", 1+r.IntN(17), r.Float64()*1000)
	}
	duration := func() string {
		return one("1s", "100ms", "1m30s", "1d", "1d12h", "0.5d", "2m0.000000001s", "36h", fmt.Sprintf("%.*fs", r.IntN(10), 1+r.Float64()*50))
	}
	rate := func() string { return number() + one("", "k", "K", "M", "G") + one("/s", "pps", "bps", "bit/s", "B/s") }
	share := func() string { return one(number()+"%", fmt.Sprintf("%.*g%%", 1+r.IntN(17), r.Float64()*100)) }
	tracker := func() string {
		all := []string{"key=" + one("src", "dst", "flow", "src/24", "dst/64", "src/32")}
		for name, value := range map[string]func() string{
			"unit":      func() string { return one("packets", "bytes") },
			"interval":  duration,
			"threshold": func() string { return one(rate(), share(), rate()+"+"+share()) },
			"action":    func() string { return one("report", "limit", "block") },
			"limit":     rate,
			"burst":     func() string { return number() + one("", "k", "M") },
			"duration":  duration,
			"memory":    func() string { return one("4096", "1MB", "64KiB", "123456", "1.5MiB") },
		} {
			if r.IntN(4) == 0 {
				all = append(all, name+"="+value())
			}
		}
		return strings.Join(all, ",")
	}
	file := func() string {
		return one("feed.txt", "/tmp/feed.txt.gz", "-", "a b", "ü.txt", "...txt", "a..b", "#", "tab\t.txt", "line\nfeed", "null", "1.0", "0x1f",
			"\x7f", "\u0085", "\u009f", "\u2028", "\ufeff", "\U0001f600", "~", "'", `"\`, ": x", "a: b", "a #b", "%s", "manual", "latin-1 \xfc.txt",
			strings.Repeat("a", r.IntN(70))+"."+strings.Repeat("b", r.IntN(70))+".txt", yamlText(r))
	}
	format := func() string {
		return one("plain", "csv,column=2", "csv,column=a,last_column=b,separator=;", "json,path=.v4[],.v6[]", "nft,sets=a,b", "hosts")
	}
	list := func() string { return file() + one("", ",format="+format()) }
	for name, value := range map[string]func() string{
		"ignore-ports":   func() string { return one("true", "false") },
		"netns":          func() string { return one("lab", "/run/netns/lab", "on", "-", "1e3", yamlText(r)) },
		"block":          list,
		"allow":          list,
		"direction":      func() string { return one("src", "dst", "both") },
		"lenient":        func() string { return one("true", "false") },
		"max-bad":        share,
		"wide":           func() string { return one("true", "false") },
		"mode":           func() string { return one("exact", "approx") },
		"bits-per-entry": number,
		"monitor":        func() string { return one("true", "false") },
		"malformed":      func() string { return one("pass", "drop") },
		"not-ip":         func() string { return one("pass", "drop") },
		"dhcp-server":    func() string { return one("true", "false") },
		"failsafe-port":  func() string { return one("tcp/22", "22/tcp", "53/udp,53/tcp", "icmp", "179") },
		"failsafe":       func() string { return one("192.0.2.0/24", "10.0.0.1,2001:db8::/32", "::1", "::ffff:192.0.2.1") },
		"xdp":            func() string { return one("native", "generic") },
		"keep":           func() string { return one("true", "false") },
		"track":          tracker,
		"learn":          func() string { return one("0", "1", "4096", "1048576") },
		"socket":         func() string { return one("", "/run/weir.sock", "weir.sock", "../x", "@abstract", yamlText(r)) },
		"metrics":        func() string { return one("127.0.0.1:9477", ":9477", "[::1]:1", "localhost:65535", yamlText(r)+":1") },
		"pins":           func() string { return one("/sys/fs/bpf/x", "/sys/fs/bpf/a b", "/"+yamlText(r)) },
	} {
		for r.IntN(5) == 0 {
			flags = append(flags, "--"+name+"="+value())
		}
	}
	return append(flags, "--iface="+one("eth0", "wan*", "br-lan,eth1", "eth0.100", "on", "007", "e[01]?", "~", "-", "@x", "é"))
}

// yamlText returns characters that have a meaning in YAML, and others.
func yamlText(r *rand.Rand) string {
	some := []rune("ab01 :#-?[]{},&*!|>'\"%@`~=/\\\t\r\n.\x00\x1f\x7f\u0080\u0085\u00a0\u2028\ud7ff\ufeff\ufffd\U0010ffff")
	all := make([]rune, 1+r.IntN(5))
	for i := range all {
		all[i] = some[r.IntN(len(some))]
	}
	return string(all)
}

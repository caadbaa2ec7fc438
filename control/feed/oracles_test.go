package feed_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/control/feed"
	"weir/control/list/listfile"
	"weir/tests/long"
	"weir/tests/seed"
)

// A piece is a line, record or value of a file with its meaning by the documentation of the
// format. It lists an entry, or is bad, or neither: a remark, or left out.
type piece struct {
	text    string
	entry   string // an address, prefix or range
	bad     bool
	refused bool // it may be bad instead
}

// An oracle makes files in a format.
type oracle struct {
	format string
	piece  func(*places) piece
	join   func(*rand.Rand, []string) string // nil: lines
}

// places draws addresses, each from a network of its own.
type places struct {
	*rand.Rand
	n int
}

// v4 returns the first three octets of the next network.
func (p *places) v4() string {
	p.n++
	return fmt.Sprintf("%d.%d.%d.", 20+p.n>>16, p.n>>8&255, p.n&255)
}

// v6 returns the first half of the next network.
func (p *places) v6() string {
	p.n++
	return fmt.Sprintf("2001:db8:%x:%x:", (p.n+1)>>16+1, (p.n+1)&0xffff)
}

// entry draws an address, prefix or range as all formats write it.
func (p *places) entry() string {
	switch low := p.IntN(200); p.IntN(8) {
	case 0:
		return p.v4() + "0/24"
	case 1:
		return p.v4() + fmt.Sprintf("%d/%d", low&^7, 29+p.IntN(4))
	case 2:
		n := p.v4()
		return fmt.Sprintf("%s%d-%s%d", n, low, n, low+1+p.IntN(50))
	case 3:
		return p.v6() + ":" + strconv.FormatInt(int64(1+low), 16)
	case 4:
		return p.v6() + ":/" + fmt.Sprint(64+p.IntN(60))
	default:
		return p.v4() + fmt.Sprint(low)
	}
}

// address draws an address.
func (p *places) address() string {
	if p.IntN(4) == 0 {
		return p.v6() + ":" + strconv.FormatInt(int64(1+p.IntN(60000)), 16)
	}
	return p.v4() + fmt.Sprint(p.IntN(256))
}

var words = []string{"scanner", "noisy", "reported to abuse 3 times", "ssh brute force", "24", "7", "0.5", "2026-10-10", "13:55:36",
	"- scanner", "/ port scan", "to be removed", ", noisy", "host7.example.net", "Example GmbH", "AS64496", "ÄÖÜ", "(dyn)", "x/24", "100%", "“quoted”",
	`- - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 404`, "→ see below", "and more", "or so", "from a list", "netmask unknown", "not sure"}

func plainPiece(p *places) piece {
	blank := pick(p, " ", "\t", "  ")
	low, n := p.IntN(200), ""
	switch p.IntN(30) {
	case 0:
		return piece{text: pick(p, "", "  ", "\t")}
	case 1:
		return piece{text: pick(p, "#", "# ", ";", "  # ") + pick(p, words...) + " " + p.entry()}
	case 2:
		e := p.entry()
		return piece{text: e + blank + pick(p, "#", ";", "# ") + pick(p, words...) + pick(p, "", " /24"), entry: e}
	case 3, 4, 5, 6:
		e, remark := p.entry(), pick(p, words...)
		return piece{text: e + blank + remark, entry: e, refused: strings.Contains(e, "-") && strings.HasPrefix(remark, "-")}
	case 7:
		n = p.v4()
		return piece{text: n + "0" + blank + pick(p, "/24", "255.255.255.0", "netmask 255.255.255.0", "mask 255.255.255.0", "/ 24", "/24 x", "prefix /24", "mask: 255.255.255.0"), entry: n + "0/24", refused: true}
	case 8:
		n = p.v4()
		return piece{text: n + "0/" + pick(p, "255.255.255.0", " 24"), entry: n + "0/24", refused: true}
	case 9, 10:
		n = p.v4()
		between := pick(p, "-", "–", "—", "to", "->", "=>", "..", "...", "through", "until", "bis", "à", "till", "thru", "→", "<->", ">", "~", "...")
		text := fmt.Sprintf("%s%d%s%s%s%s%d", n, low, blank, between, blank, n, low+9)
		return piece{text: text + pick(p, "", "", " x"), entry: fmt.Sprintf("%s%d-%s%d", n, low, n, low+9), refused: true}
	case 11:
		n = p.v4()
		return piece{text: fmt.Sprintf("%s%d%s%s%s%d", n, low, blank, pick(p, "-", "–", "to", "->", ".."), blank, low+9), entry: fmt.Sprintf("%s%d-%s%d", n, low, n, low+9), refused: true}
	case 12:
		n = p.v6()
		return piece{text: n + ":" + blank + pick(p, "/64", "/ 64", "prefixlen 64"), entry: n + ":/64", refused: true}
	case 13:
		return piece{text: p.v4() + "1" + pick(p, " ", " , ", " and ", ", ", ",", "; ", " | ", " & ") + p.v4() + "1", bad: true}
	case 14:
		return piece{text: p.v4() + "0/24" + blank + pick(p, "!", "except ", "without ", "but not ", "not ", "minus ", "- ") + fmt.Sprintf("%s%d", fmt.Sprintf("20.%d.%d.", p.n>>8&255, p.n&255), low), bad: true}
	case 15:
		return piece{text: fmt.Sprintf("%s0%d", p.v4(), 1+p.IntN(77)), bad: true} // octal, or decimal
	case 16:
		return piece{text: p.v4() + pick(p, "256", "1.1", "x", "-1", "1/33", "1/-1", "1/24", "1:443", "1,5", "1 - "+p.v4()+"1 - 7"), bad: true}
	case 17:
		return piece{text: pick(p, "!", "-", "~", "not ", "! ", "except ", "allow ", "permit ", "ip=") + p.v4() + "1", bad: true}
	case 18:
		n = p.v4()
		return piece{text: n + pick(p, "*", "x", ""), entry: n + "0/24", refused: true}
	case 19:
		n = p.v4()
		return piece{text: fmt.Sprintf("%s%d-%d", n, low, low+9), entry: fmt.Sprintf("%s%d-%s%d", n, low, n, low+9), refused: true}
	case 20:
		e := p.entry()
		return piece{text: e + ",", entry: e, refused: true}
	case 21:
		n = p.v4()
		return piece{text: n + "0-255.255.255." + pick(p, "0", "128", "192"), bad: true}
	case 22:
		return piece{text: "sshd: " + p.address(), bad: true}
	case 23:
		n = p.v4()
		return piece{text: strings.ReplaceAll(n, ".", pick(p, "[.]", "(.)", "[dot]")) + "1", entry: n + "1", refused: true}
	default:
		e := p.entry()
		return piece{text: pick(p, "", "", " ") + e + pick(p, "", "", " ", "\r"), entry: e}
	}
}

// quotedCSV writes a field by RFC 4180, in quotes where it must be or may be.
func quotedCSV(r *rand.Rand, separator, field string) string {
	if strings.ContainsAny(field, "\"\n\r"+separator) || r.IntN(6) == 0 {
		return `"` + strings.ReplaceAll(field, `"`, `""`) + `"`
	}
	return field
}

var fields = []string{"", "x", "ssh", "192.0.2.99", "a, b", "a;b", "a\tb", `say "no"`, "two\nlines", "24", "2026-01-01 10:00:00", "Ünïcode"}

func csvPiece(separator string, two bool) func(*places) piece {
	return func(p *places) piece {
		var first, last, entry string
		bad, refused := false, false
		switch n := p.v4(); p.IntN(12) {
		case 0:
			first, bad = pick(p, "", "-", "n/a", "example.net", "AS64496", "192.0.2.1x"), true
		case 1:
			first, entry, refused = n+"0 /24", n+"0/24", true
		case 2:
			first, bad = n+"1 "+n+"2", true
		case 3:
			if two {
				first, last, entry, refused = n+"0", "255.255.255.0", n+"0/24", true
			} else {
				first, entry, refused = n+"4 to "+n+"9", n+"4-"+n+"9", true
			}
		default:
			first = p.address()
			entry = first
			if two {
				first, last, entry = n+"10", n+"90", n+"10-"+n+"90"
			} else if p.IntN(3) == 0 {
				first = p.entry()
				entry = first
			}
		}
		row := []string{pick(p, fields...), first, last, pick(p, fields...)}
		if !two {
			row[2] = pick(p, fields...)
		} else if bad || last == "" {
			row[1], row[2], entry, refused, bad = pick(p, "", "x"), p.v4()+"1", "", false, true
		}
		for i := range row {
			row[i] = quotedCSV(p.Rand, separator, row[i])
		}
		if row[0] == "" && !two {
			row[0] = "x"
		}
		return piece{text: strings.Join(row, separator), entry: entry, bad: bad, refused: refused}
	}
}

// json value of an object with an address.
func jsonPiece(p *places) piece {
	quoted := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	other := pick(p, `"ip2": "192.0.2.99"`, `"note": "a \"ip\": b"`, `"n": 1e3`, `"x": {"ip": "192.0.2.98"}`, `"y": ["192.0.2.97"]`, `"z": null`)
	value := func(v string, bad, refused bool, entry string) piece {
		all := []string{`"ip": ` + v, other}
		p.Shuffle(2, func(i, j int) { all[i], all[j] = all[j], all[i] })
		return piece{text: "{" + strings.Join(all, pick(p, ",", ", ", "\n, ")) + "}", bad: bad, refused: refused, entry: entry}
	}
	switch n := p.v4(); p.IntN(12) {
	case 0:
		return value(pick(p, "7", "true", `""`, `"x"`, `"example.net"`, `["`+n+`1"]`, `{"a": "`+n+`1"}`, "3221225985"), true, false, "")
	case 1:
		return value(quoted(n+"0 /24"), false, true, n+"0/24")
	case 2:
		return value(quoted(n+"4 - "+n+"9"), false, true, n+"4-"+n+"9")
	case 3:
		return value(quoted(n+"1, "+n+"2"), true, false, "")
	default:
		e := p.entry()
		text := quoted(e)
		if p.IntN(8) == 0 {
			text = strings.Replace(text, ".", `\u002e`, 1)
		}
		return value(text, false, false, e)
	}
}

func p2pPiece(p *places) piece {
	n := p.v4()
	low := p.IntN(200)
	name := pick(p, "Acme", "Acme: Labs", "", "a-b", "192.0.2.99", "Ünïcode", "x:y:z", "a # b", "24")
	e := fmt.Sprintf("%s%d-%s%d", n, low, n, low+9)
	switch p.IntN(12) {
	case 0:
		return piece{text: "# " + name + ":" + e}
	case 1:
		return piece{text: ""}
	case 2:
		return piece{text: name + ":" + n + "0-255.255.255.0", bad: true}
	case 3:
		return piece{text: fmt.Sprintf("%s:%s%d-%s%d", name, n, low+9, n, low), bad: true}
	case 4:
		return piece{text: name + ":" + e + pick(p, " - x", ","+p.v4()+"1", " "+p.v4()+"1", "-"+p.v4()+"1"), bad: true}
	case 5:
		return piece{text: name + ":" + pick(p, "x", "", n+"256", n+"4-", "-"+n+"4"), bad: true}
	default:
		return piece{text: name + ":" + e + pick(p, "", "", "\r"), entry: e}
	}
}

func datPiece(p *places) piece {
	n := p.v4()
	low := p.IntN(200)
	wide := func(last int) string {
		if p.IntN(2) == 0 {
			return n + fmt.Sprint(last)
		}
		var o []string
		for x := range strings.SplitSeq(n+fmt.Sprint(last), ".") {
			o = append(o, fmt.Sprintf("%03s", x))
		}
		return strings.Join(o, ".")
	}
	e := fmt.Sprintf("%s%d-%s%d", n, low, n, low+9)
	rng := wide(low) + " - " + wide(low+9)
	switch p.IntN(10) {
	case 0:
		return piece{text: pick(p, "# ", "#") + rng + " , 100 , x"}
	case 1:
		return piece{text: rng + " , " + fmt.Sprint(128+p.IntN(128)) + " , allowed", refused: true} // eMule lets levels above 127 pass
	case 2:
		return piece{text: rng + " , " + pick(p, "high", "", "-1", "1000x") + " , x", bad: true}
	case 3:
		return piece{text: n + "0 - 255.255.255.0 , 100 , x", bad: true}
	case 4:
		return piece{text: pick(p, "x", wide(low+9)+" - "+wide(low)+" , 100 , x", "- , 100 , x"), bad: true}
	default:
		return piece{text: rng + " , " + fmt.Sprintf("%03d", p.IntN(127)) + " , " + pick(p, "Acme", "a, b", "192.0.2.99", ""), entry: e}
	}
}

func hostsPiece(p *places) piece {
	name := pick(p, "bad.example.net", "a.example b.example", "x", "bad_host.example.net")
	switch p.IntN(10) {
	case 0:
		return piece{text: "# " + p.address() + " " + name}
	case 1:
		return piece{text: pick(p, "127.0.0.1 localhost", "::1 localhost ip6-localhost", "127.0.1.1 me", "255.255.255.255 broadcasthost", "fe80::1%lo0 localhost", "")}
	case 2:
		return piece{text: p.address() + " " + p.address() + " " + name, bad: true}
	case 3:
		return piece{text: name + " " + p.address(), bad: true}
	case 4:
		a := p.address()
		return piece{text: a + "\t" + name + " # was 192.0.2.99", entry: a}
	default:
		a := p.address()
		return piece{text: a + pick(p, " ", "\t", "   ") + name + pick(p, "", " ", "\r"), entry: a}
	}
}

// nginxPiece is a line of ngx_http_access_module's directives, or of a configuration around them.
func nginxPiece(p *places) piece {
	switch p.IntN(9) {
	case 0:
		return piece{text: pick(p, "", "# deny 192.0.2.99;", "  # x")}
	case 1:
		return piece{text: "deny " + pick(p, "unix:", "example.net", "x") + ";", bad: true}
	default:
		e := p.entry()
		for strings.Contains(e, "-") {
			e = p.entry()
		}
		return piece{text: pick(p, "", "\t", "    ") + "deny" + pick(p, " ", "  ", "\t") + e + pick(p, ";", " ;", "; # x", ";# 192.0.2.99", "; ", ";\r"), entry: e}
	}
}

// apachePiece is a directive of mod_access_compat or mod_authz_host.
func apachePiece(p *places) piece {
	directive := pick(p, "Deny from ", "deny from ", "Require not ip ", "  Require not ip ", "Deny  from  ")
	switch n := p.v4(); p.IntN(10) {
	case 0:
		return piece{text: pick(p, "", "# Deny from 192.0.2.99", "<RequireAll>", "</RequireAll>", "Require all granted")}
	case 1:
		return piece{text: directive + strings.TrimSuffix(n, "."), entry: n + "0/24"}
	case 2:
		return piece{text: directive + n + "0/255.255.255.128", entry: n + "0/25"}
	case 3:
		return piece{text: "Deny from " + pick(p, "example.net", "env=bad"), bad: true}
	case 4:
		return piece{text: "Require not host example.net", bad: true}
	default:
		e := p.entry()
		for strings.Contains(e, "-") {
			e = p.entry()
		}
		return piece{text: directive + e, entry: e}
	}
}

// stixPiece is an indicator of STIX 2.1.
func stixPiece(p *places) piece {
	kind := func(e string) string {
		if strings.Contains(e, ":") {
			return "ipv6-addr"
		}
		return "ipv4-addr"
	}
	e := p.entry()
	for strings.Contains(e, "-") {
		e = p.entry()
	}
	x := piece{entry: e}
	pattern := fmt.Sprintf(pick(p, "[%s:value = '%s']", "[ %s:value='%s' ]", "[%s:value IN ('%s')]", "([%s:value = '%s'])", "[%s:value ISSUBSET '%s']"), kind(e), e)
	more := ""
	switch p.IntN(14) {
	case 0:
		more, x = `, "indicator_types": `+pick(p, `["benign"]`, `["unknown", "benign"]`), piece{}
	case 1:
		more, x = `, "revoked": true`, piece{}
	case 2:
		more, x = `, "valid_until": "2026-01-02T00:00:00Z"`, piece{}
	case 3:
		pattern, x = pick(p, "[domain-name:value = 'example.net']", "[url:value = 'http://192.0.2.99/']", "[file:hashes.MD5 = 'd41d8cd98f00b204e9800998ecf8427e']"), piece{}
	case 4:
		pattern = pick(p, strings.Replace(pattern, "]", " AND network-traffic:dst_port = 22]", 1), strings.Replace(pattern, "]", "] REPEATS 3 TIMES", 1), fmt.Sprintf("[%s:value != '%s']", kind(e), e), fmt.Sprintf("[%s:value LIKE '%s']", kind(e), e), fmt.Sprintf("[%s:value ISSUPERSET '%s']", kind(e), e), pattern+" AND [file:size = 3]", pattern+" FOLLOWEDBY "+pattern)
		x = piece{bad: true}
	case 5:
		more = `, "indicator_types": ["malicious-activity"], "labels": ["benign-looking"], "confidence": 90`
	case 6:
		more = `, "description": "not benign, 192.0.2.99"`
	}
	quoted, _ := json.Marshal(pattern)
	x.text = fmt.Sprintf(`{"type": "indicator", "spec_version": "2.1", "id": "indicator--00000000-0000-4000-8000-%012d", "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z", "name": "n", "pattern_type": "stix", "valid_from": "2026-01-01T00:00:00Z", "pattern": %s%s}`, p.n, quoted, more)
	return x
}

func lines(r *rand.Rand, texts []string) string {
	return strings.Join(texts, "\n") + pick(r, "\n", "\n", "", "\r\n")
}

var oracles = map[string]oracle{
	"plain":          {format: "plain", piece: plainPiece},
	"csv":            {format: "csv,column=ip", piece: csvPiece(",", false), join: func(r *rand.Rand, t []string) string { return "id,ip,a,b\n" + lines(r, t) }},
	"csv, semicolon": {format: "csv,column=2,separator=;", piece: csvPiece(";", false), join: func(r *rand.Rand, t []string) string { return "id;network;a;b\n" + lines(r, t) }},
	"csv, tab": {format: "csv,column=2,last_column=3,separator=\t", piece: csvPiece("\t", true), join: func(r *rand.Rand, t []string) string {
		return "# as DShield's block.txt\nname\tStart\tEnd\tNetmask\n" + lines(r, t)
	}},
	"json": {format: "json,path=.data[].ip", piece: jsonPiece, join: func(r *rand.Rand, t []string) string {
		return pick(r, "", "\ufeff") + `{"meta": {"ip": "192.0.2.96"}, "data": [` + strings.Join(t, ", ") + `], "more": [{"ip": "192.0.2.95"}]}`
	}},
	"jsonl": {format: "jsonl,path=.ip", piece: func(p *places) piece {
		x := jsonPiece(p)
		x.text = strings.ReplaceAll(x.text, "\n", " ")
		return x
	}},
	"p2p":    {format: "p2p", piece: p2pPiece},
	"dat":    {format: "dat", piece: datPiece},
	"hosts":  {format: "hosts", piece: hostsPiece},
	"nginx":  {format: "deny", piece: nginxPiece, join: func(r *rand.Rand, t []string) string { return lines(r, t) + pick(r, "", "\nallow all;\n") }},
	"apache": {format: "deny", piece: apachePiece},
	"stix": {format: "stix", piece: stixPiece, join: func(r *rand.Rand, t []string) string {
		return `{"type": "bundle", "id": "bundle--00000000-0000-4000-8000-000000000001", "objects": [` + strings.Join(t, ",\n") + "]}"
	}},
}

// TestOracles reads random files whose meaning is known by the documentation of their formats: each
// entry is read, each bad line is counted, and nothing else becomes an entry.
func TestOracles(t *testing.T) {
	t.Parallel()
	for _, name := range sortedKeys(oracles) {
		o := oracles[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := feed.ParseFormat(o.format)
			if err != nil {
				t.Fatal(err)
			}
			p := &places{Rand: seed.New(t)}
			failed := make(map[string]bool)
			for range long.Rounds(100, 300, 10_000) {
				o.check(t, f, p, failed)
			}
		})
	}
}

// check reads a file, and where that fails, its pieces alone.
func (o oracle) check(t *testing.T, f feed.Format, p *places, failed map[string]bool) {
	t.Helper()
	p.n = p.IntN(1 << 20)
	var pieces []piece
	for range 1 + p.IntN(40) {
		pieces = append(pieces, o.piece(p))
	}
	whole := o.read(f, p.Rand, pieces)
	if whole == "" {
		return
	}
	alone := false
	for _, x := range pieces {
		if said := o.read(f, p.Rand, []piece{x}); said != "" {
			alone = true
			kind := variable.ReplaceAllString(x.text, "…")
			if !failed[kind] && len(failed) < 15 {
				t.Errorf("%s", said)
			}
			failed[kind] = true
		}
	}
	if !alone && !failed[""] {
		failed[""] = true
		t.Errorf("only in a file: %s", whole)
	}
}

// read returns what is wrong with how pieces are read.
func (o oracle) read(f feed.Format, r *rand.Rand, pieces []piece) string {
	var texts []string
	var must spans
	bad := 0
	for _, x := range pieces {
		texts = append(texts, x.text)
		switch {
		case x.bad:
			bad++
		case x.entry != "" && !x.refused:
			must = append(must, parsed(x.entry)...)
		}
	}
	must = joined(must)
	join := o.join
	if join == nil {
		join = lines
	}
	text := join(r, texts)
	e, report, err := feed.Read("file", strings.NewReader(text), f, 1<<30, listfile.Options{MaxBad: 1})
	if err != nil {
		if len(must) == 0 {
			return "" // a file of nothing else may be refused
		}
		return fmt.Sprintf("%v\n%s", err, text)
	}
	got, flows := covered(e)
	want := must
	most := bad
	for _, x := range pieces {
		switch {
		case x.refused && x.entry == "":
			most++
		case x.refused && len(parsed(x.entry).without(got)) == 0:
			want = want.and(parsed(x.entry))
		case x.refused:
			bad++
			most++
		}
	}
	if !slices.Equal(got, want) || len(flows) > 0 || report.Bad < bad || report.Bad > most {
		return fmt.Sprintf("too much: %v %q, missing: %v; %d bad, want %d: %v\n%s", got.without(want), flows, want.without(got), report.Bad, bad, report.Errors, text)
	}
	return ""
}

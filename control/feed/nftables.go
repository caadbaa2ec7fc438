package feed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

var nftablesFormat = format{
	Description: Description{
		Name: "nftables", Options: []string{"sets"}, Example: "{kind: nftables, sets: [a]}",
		About:   "the output of `nft list set` or `nft list ruleset`, or a script with `add element`; with `nft -j`, too. `sets` names the sets, which need not be given where there is one of addresses; `nft` is short for it",
		Grammar: "An element of a set of type `ipv4_addr` or `ipv6_addr` is an entry: an address, a prefix, or a range. After it may follow `timeout`, `expires`, `counter`, `comment`, `limit`, `quota` and `last`, which are remarks; anything else is bad. Chains, rules, maps, other sets and definitions are left out. Variables in elements, `include`, other statements, and what takes elements from a set that is read (`delete`, `destroy`, `flush`, `reset`) refuse the file.",
	},
	short: "nft", read: (*reader).nftables,
}

// nftables reads the sets of a ruleset, and the elements that a script adds to
// sets, as text or as JSON. It ignores expiries, which are relative to the time when
// the set was printed.
func (f *reader) nftables(c *collector) error {
	c.text.offsets = true
	in := bufio.NewReader(&c.text)
	if begin, _ := in.Peek(1); string(begin) == "{" {
		return f.nftablesJSON(c, in)
	}
	p := &nftParser{c: c, in: in, line: 1, wanted: wanted{names: f.Sets}, tables: map[string]string{}, others: map[string]bool{}}
	if err := p.block(0); err != nil {
		return fmt.Errorf("line %d: %w", p.start, err)
	}
	return p.wanted.missing(p.c)
}

// nftParser parses the part of nft's language that matters here: statements,
// and blocks of statements in braces.
type nftParser struct {
	c      *collector
	in     *bufio.Reader
	line   int
	start  int // line of the last token
	offset int64
	wanted wanted

	table  string            // that is being read
	tables map[string]string // of the sets
	others map[string]bool   // sets of something else than addresses
}

// maxWords is the number of words that a statement or an element may have.
const maxWords = 10_000

// addWord appends a token to the words of a statement or an element.
func addWord(words []string, t nftToken) ([]string, error) {
	if len(words) == maxWords {
		return nil, fmt.Errorf("more than %d words without an end", maxWords)
	}
	if t.quoted && len(words) > 0 || t.text == "" {
		return append(words, `""`), nil // a comment
	}
	return append(words, t.text), nil
}

// nftMend says what to do with a script that weir does not read.
const nftMend = "load the file, and read the output of `nft list set`"

// nftOther are the objects and remarks that no set depends on.
var nftOther = []string{
	"chain", "rule", "map", "counter", "quota", "limit", "ct", "flowtable", "secmark", "synproxy", "tunnel", "comment", "flags", "table", "set", "ruleset",
}

// block reads statements until the brace that closes the block, or at depth 0
// until the end of the text.
func (p *nftParser) block(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	var words []string // of the statement
	for ended, other := false, false; ; {
		t, err := p.token()
		last := err == io.EOF && depth == 0
		switch {
		case err != nil && !last:
			return unexpected(err)
		case t.is("}") && depth == 0:
			return errors.New("stray }")
		case t.is("{") && other:
			err = p.skip()
		case t.is("{"):
			other, err = p.statement(words, true, depth)
			words, ended = nil, true
		case last || t.ends() || t.is("}"):
			if err = nil; len(words) > 0 {
				_, err = p.statement(words, false, depth)
			}
			if last || t.is("}") {
				return err
			}
			words, ended, other = nil, false, false
		case other:
		case ended:
			return fmt.Errorf("%.60q after a block", t.text)
		default:
			words, err = addWord(words, t)
		}
		if err != nil {
			return err
		}
	}
}

// statement reads a statement, with the block that follows its words. It reports whether the
// rest of the statement is left out.
func (p *nftParser) statement(words []string, block bool, depth int) (other bool, err error) {
	if len(words) == 0 {
		words = []string{"{"}
	}
	line, all := p.start, strings.Join(words, " ")
	name := words[len(words)-1]
	words, adds, err := p.command(words, all)
	if err != nil {
		return false, err
	}
	if !adds {
		if block {
			err = p.skip()
		}
		return true, err
	}
	object := strings.Join(words[:min(1, len(words))], "")
	if strings.Contains(all, "$") && (object == "set" || object == "element" || object == "table") {
		return false, fmt.Errorf("%.60s: variables are not read: %s", all, nftMend)
	}
	switch {
	case object == "table" && block:
		p.table = strings.Join(words[1:], " ")
		return false, p.block(depth + 1)
	case object == "set" && block && len(words) > 1:
		return false, p.set(name)
	case object == "element" && block && len(words) > 1:
		read := !p.others[name]
		if read {
			read, err = p.wanted.set(name, true)
		}
		if err == nil {
			err = p.elements(name, read)
		}
		return false, err
	case !slices.Contains(nftOther, object):
		return false, fmt.Errorf("the statement %.60q is not read: %s", all, nftMend)
	case object == "map" || object == "chain" || object == "rule":
		p.c.leave(fmt.Sprintf("%.60s (line %d)", strings.Join(words[:min(2, len(words))], " "), line))
	}
	if block {
		err = p.skip()
	}
	return true, err
}

// command reads the command with which a statement begins, if it has one. It returns the words
// after that, and reports whether the statement may add something; others are left out.
func (p *nftParser) command(words []string, all string) (rest []string, adds bool, err error) {
	switch verb, rest := words[0], words[1:]; verb {
	case "include":
		return nil, false, fmt.Errorf("%.60s: what it brings in is not read: %s", all, nftMend)
	case "define", "redefine", "undefine":
		p.c.leave(verb)
		return nil, false, nil
	case "add", "create", "insert", "replace", "rename", "list":
		if verb == "replace" && len(rest) > 0 && (rest[0] == "element" || rest[0] == "set") {
			return nil, false, fmt.Errorf("%.60s: nft has no such command", all)
		}
		return rest, true, nil
	case "delete", "destroy", "flush", "reset":
		object, name := "", words[len(words)-1]
		if len(rest) > 0 {
			object = rest[0]
		}
		if object == "table" || object == "ruleset" {
			name = ""
		}
		if err := p.wanted.takes(verb, object, name, nftMend); err != nil {
			return nil, false, err
		}
		p.c.leave(verb)
		return nil, false, nil
	}
	return words, true, nil
}

// skip reads up to the brace that closes a block.
func (p *nftParser) skip() error {
	for depth := 1; depth > 0; {
		t, err := p.token()
		switch {
		case err != nil:
			return unexpected(err)
		case t.is("{"):
			depth++
		case t.is("}"):
			depth--
		}
		if depth > maxDepth {
			return fmt.Errorf("nested deeper than %d", maxDepth)
		}
	}
	return nil
}

// nftOfSet are the words with which the properties of a set begin. None changes its elements.
var nftOfSet = []string{"flags", "timeout", "gc-interval", "size", "policy", "comment", "auto-merge", "counter", "quota", "limit", "last", "ct"}

// set reads the block of a set.
func (p *nftParser) set(name string) error {
	read, typed, line := false, false, p.start
	var words []string
	for {
		t, err := p.token()
		closes := t.is("}")
		switch {
		case err != nil:
			return unexpected(err)
		case t.is("{"):
			if !typed || len(words) == 0 || words[0] != "elements" {
				return fmt.Errorf("set %.60q: a block after %.60q, before a type or not of elements", name, strings.Join(words, " "))
			}
			if err := p.elements(name, read); err != nil {
				return err
			}
			words = nil
		case closes || t.ends():
			switch text := strings.Join(words, " "); {
			case len(words) > 1 && (words[0] == "type" || words[0] == "typeof"):
				typed = true
				addresses := isAddressType(words[1:])
				if read, err = p.wanted.set(name, addresses); err != nil {
					return err
				}
				if table, ok := p.tables[name]; ok && read && table != p.table {
					return fmt.Errorf("several sets %.60s, of table %.60s and %.60s: %s", name, table, p.table, nftMend)
				}
				if p.tables[name] = p.table; !read {
					p.others[name] = !addresses
					p.c.leave(fmt.Sprintf("set %.60s of %.60s (line %d)", name, text, line))
				}
			case strings.Contains(text, "$"):
				return fmt.Errorf("set %.60s: %.60s: variables are not read: %s", name, text, nftMend)
			case len(words) > 0 && !slices.Contains(nftOfSet, words[0]):
				return fmt.Errorf("set %.60s: %.60q is not known, and may change its elements", name, text)
			}
			if closes {
				return nil
			}
			words = nil
		default:
			if words, err = addWord(words, t); err != nil {
				return err
			}
		}
	}
}

// isAddressType reports whether sets of that type contain addresses.
func isAddressType(words []string) bool {
	switch strings.Join(words, " ") {
	case "ipv4_addr", "ipv6_addr", "ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr":
		return true
	}
	return false
}

// elements reads elements until the closing brace.
func (p *nftParser) elements(name string, read bool) error {
	var words []string
	var at place
	for {
		t, err := p.token()
		if err != nil {
			return unexpected(err)
		}
		switch closes := t.is("}"); {
		case closes || t.is(","):
			if read && len(words) > 0 {
				p.wanted.fill(name)
				p.element(at, words)
			}
			words = nil
			if closes {
				return nil
			}
		case t.is("\n"):
		case t.is("{"):
			return errors.New("a block inside of elements")
		case read && !t.quoted && strings.HasPrefix(t.text, "$"):
			return fmt.Errorf("%.60s: variables are not read: %s", t.text, nftMend)
		default:
			if len(words) == 0 {
				at = place{p.line, p.offset - int64(len(t.text))}
			}
			if words, err = addWord(words, t); err != nil {
				return err
			}
		}
	}
}

// nftRemarks are the words that may follow an address.
var nftRemarks = []string{"timeout", "expires", "counter", "comment", "limit", "quota", "last"}

func (p *nftParser) element(at place, words []string) {
	text, rest := words[0], words[1:]
	for len(rest) > 0 && strings.ContainsAny(rest[0][:1]+text[max(len(text)-1, 0):], "-/") {
		text, rest = text+rest[0], rest[1:]
	}
	if len(rest) > 0 && !slices.Contains(nftRemarks, rest[0]) || slices.Contains(rest, ".") || slices.Contains(rest, ":") {
		p.c.bad(at, strings.Join(words, " "), errors.New("more than an address"))
		return
	}
	p.c.span(at, text, text, 0)
}

// nftToken is a word, a string in quotes, a line end or one of "{};,=".
type nftToken struct {
	text   string
	quoted bool
}

// is reports whether a token is the given punctuation.
func (t nftToken) is(text string) bool { return !t.quoted && t.text == text }

// ends reports whether a token ends a statement.
func (t nftToken) ends() bool { return t.is("\n") || t.is(";") }

// token reads the next token.
func (p *nftParser) token() (nftToken, error) {
	p.c.text.begin(p.offset)
	p.start = p.line
	const single = "{};,=\n"
	var word []byte
	for {
		b, err := p.in.ReadByte()
		if err != nil {
			if err == io.EOF && word != nil {
				return nftToken{text: string(word)}, nil
			}
			return nftToken{}, err
		}
		blank := b == ' ' || b == '\t' || b == '\r'
		ends := blank || b == '"' || b == '#' || strings.IndexByte(single, b) >= 0
		if word != nil && ends {
			_ = p.in.UnreadByte() // cannot fail, it was read
			return nftToken{text: string(word)}, nil
		}
		p.offset++
		switch p.start = p.line; {
		case b == '\n':
			p.line++
			return nftToken{text: "\n"}, nil
		case b == '"':
			s, err := p.until('"')
			return nftToken{s, true}, err
		case b == '#':
			if _, err := p.until('\n'); err != nil {
				return nftToken{}, err
			}
			return nftToken{text: "\n"}, nil
		case blank, b == '\\': // which continues a line
		case ends:
			return nftToken{text: string(b)}, nil
		default:
			word = append(word, b)
		}
	}
}

// until reads up to and including the byte that ends a string or a comment.
func (p *nftParser) until(end byte) (string, error) {
	s, err := p.in.ReadString(end)
	p.offset += int64(len(s))
	p.line += strings.Count(s, "\n")
	return strings.TrimSuffix(s, string(end)), err
}

// unexpected turns the end of the text inside a block into an error.
func unexpected(err error) error {
	if err == io.EOF {
		return fmt.Errorf("a block is not closed: %w", io.ErrUnexpectedEOF)
	}
	return err
}

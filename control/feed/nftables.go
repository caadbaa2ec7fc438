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
		Grammar: "Elements of the sets are entries.",
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
	p := &nftParser{c: c, in: in, line: 1, wanted: wanted{names: f.Sets}}
	if err := p.block(0); err != nil {
		return fmt.Errorf("line %d: %w", p.line, err)
	}
	return p.wanted.missing()
}

// nftParser parses the part of nft's language that matters here: statements,
// and blocks of statements in braces.
type nftParser struct {
	c      *collector
	in     *bufio.Reader
	line   int
	offset int64
	wanted wanted
}

// maxWords is the number of words that a statement or an element may have.
const maxWords = 10_000

// addWord appends a token to the words of a statement or an element.
func addWord(words []string, t nftToken) ([]string, error) {
	if len(words) == maxWords {
		return nil, fmt.Errorf("more than %d words without an end", maxWords)
	}
	return append(words, t.text), nil
}

// block reads statements until the brace that closes the block, or at depth 0
// until the end of the text.
func (p *nftParser) block(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	var words []string // of the statement
	for {
		t, err := p.token()
		switch {
		case err == io.EOF && depth == 0:
			return nil
		case err != nil:
			return unexpected(err)
		case t.is("}"):
			if depth == 0 {
				return errors.New("stray }")
			}
			return nil
		case t.is("{"):
			if err := p.inner(words, depth+1); err != nil {
				return err
			}
			words = nil
		case t.ends():
			words = nil
		default:
			if words, err = addWord(words, t); err != nil {
				return err
			}
		}
	}
}

// inner reads the block that follows the words of a statement.
func (p *nftParser) inner(words []string, depth int) error {
	verb := slices.Index(words, "set")
	adds := len(words) > 0 && (words[0] == "add" || words[0] == "create")
	switch {
	case len(words) > 1 && (verb == 0 || verb == 1 && adds): // set NAME, add set FAMILY TABLE NAME
		return p.set(words[len(words)-1])
	case len(words) > 2 && adds && words[1] == "element":
		read, err := p.wanted.set(words[len(words)-1], true)
		if err != nil {
			return err
		}
		return p.elements(read)
	}
	return p.block(depth)
}

// set reads the block of a set.
func (p *nftParser) set(name string) error {
	read, typed := false, false
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
			if err := p.elements(read); err != nil {
				return err
			}
			words = nil
		case closes || t.ends():
			if len(words) > 1 && (words[0] == "type" || words[0] == "typeof") {
				typed = true
				if read, err = p.wanted.set(name, isAddressType(words[1:])); err != nil {
					return err
				}
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
func (p *nftParser) elements(read bool) error {
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
				p.element(at, words)
			}
			words = nil
			if closes {
				return nil
			}
		case t.is("\n"):
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

func (p *nftParser) element(at place, words []string) {
	if len(words) > 1 && (words[1] == "." || words[1] == ":") {
		p.c.bad(at, strings.Join(words, " "), errors.New("more than an address"))
		return
	}
	p.c.value(at, words[0])
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
		switch {
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
		case blank:
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

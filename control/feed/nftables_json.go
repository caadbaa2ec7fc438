package feed

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// nftablesJSON reads the output of "nft -j", with one element in memory at a time.
// It is an object with a list of commands, {"nftables": [...]}, of which it reads
// the sets and the elements that are added to sets.
func (f *reader) nftablesJSON(c *collector, in *bufio.Reader) error {
	p := &nftJSON{c: c, dec: json.NewDecoder(in), wanted: wanted{names: f.Sets}}
	err := p.object(func(name string) error {
		if name != "nftables" {
			return p.skip()
		}
		return p.array(p.command)
	})
	if err != nil {
		at := p.place()
		return fmt.Errorf("line %d, byte %d: %w", at.line, at.offset, err)
	}
	return p.wanted.missing()
}

type nftJSON struct {
	c      *collector
	dec    *json.Decoder
	wanted wanted
}

func (p *nftJSON) place() place {
	offset := p.dec.InputOffset()
	return place{p.c.text.at(offset), offset}
}

// object reads an object and calls field with the name of each field, to read its
// value.
func (p *nftJSON) object(field func(name string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // the decoder accepts nothing else
		if err := field(name); err != nil {
			return err
		}
	}
	return p.delim('}')
}

// array reads an array and calls element to read each element.
func (p *nftJSON) array(element func() error) error {
	if err := p.delim('['); err != nil {
		return err
	}
	for p.dec.More() {
		if err := element(); err != nil {
			return err
		}
	}
	return p.delim(']')
}

func (p *nftJSON) delim(want json.Delim) error {
	t, err := p.token()
	if err == nil && t != want {
		err = fmt.Errorf("%.60q instead of %q", fmt.Sprint(t), want)
	}
	return err
}

func (p *nftJSON) token() (json.Token, error) {
	p.c.text.begin(p.dec.InputOffset())
	t, err := p.dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}

// skip reads a value of any kind, token by token.
func (p *nftJSON) skip() error {
	for depth := 0; ; {
		t, err := p.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return fmt.Errorf("nested deeper than %d", maxDepth)
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// value decodes a short value.
func (p *nftJSON) value(v any) error {
	p.c.text.begin(p.dec.InputOffset())
	return p.dec.Decode(v)
}

// command reads one command: {"set": {...}}, {"element": {...}}, or one of them in
// {"add": ...} or {"create": ...}.
func (p *nftJSON) command() error {
	object := func(name string) error {
		switch name {
		case "set":
			return p.set(false)
		case "element":
			return p.set(true)
		}
		return p.skip()
	}
	return p.object(func(name string) error {
		if name == "add" || name == "create" {
			return p.object(object)
		}
		return object(name)
	})
}

// set reads a set, or elements that are added to a set, without its type.
func (p *nftJSON) set(added bool) error {
	name, read, typed := "", false, false
	return p.object(func(field string) (err error) {
		switch {
		case field == "name":
			return p.value(&name)
		case field == "type" && name != "":
			var t nftType
			if err := p.value(&t); err != nil {
				return err
			}
			typed = true
			read, err = p.wanted.set(name, bool(t))
			return err
		case field != "elem":
			return p.skip()
		case name == "" || !typed && !added:
			return errors.New("elements before the set's name and type")
		case !typed:
			if read, err = p.wanted.set(name, true); err != nil {
				return err
			}
		}
		if !read {
			return p.skip()
		}
		return p.array(p.element)
	})
}

// element reads an element.
func (p *nftJSON) element() error {
	var e json.RawMessage
	if err := p.value(&e); err != nil {
		return err
	}
	at := p.place()
	at.offset -= int64(len(e)) // on the line where it ends
	if text := nftAddresses(e); text != "" {
		p.c.value(at, text)
	} else {
		p.c.bad(at, string(e), errors.New("more than an address"))
	}
	return nil
}

// nftType reports whether sets of a type contain addresses. The type is a name, a list
// of them, or {"typeof": expression}.
type nftType bool

func (t *nftType) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) == nil {
		*t = nftType(isAddressType([]string{name}))
		return nil
	}
	var of struct {
		Typeof struct {
			Payload struct{ Protocol, Field string }
		}
	}
	_ = json.Unmarshal(b, &of) // a list, or an expression of another form, has no addresses
	*t = nftType(isAddressType([]string{of.Typeof.Payload.Protocol, of.Typeof.Payload.Field}))
	return nil
}

// nftAddresses returns an element as the list format has it, "" if it is not an
// address, a prefix or a range.
func nftAddresses(element json.RawMessage) string {
	var e struct {
		Elem   struct{ Val json.RawMessage }
		Prefix struct {
			Addr string
			Len  int
		}
		Range []string
	}
	var address string
	switch {
	case json.Unmarshal(element, &address) == nil:
		return address
	case json.Unmarshal(element, &e) != nil:
	case e.Elem.Val != nil: // with a timeout, a comment or a counter
		return nftAddresses(e.Elem.Val)
	case e.Prefix.Addr != "":
		return fmt.Sprintf("%s/%d", e.Prefix.Addr, e.Prefix.Len)
	case len(e.Range) == 2:
		return e.Range[0] + "-" + e.Range[1]
	}
	return ""
}

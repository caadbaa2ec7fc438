package feed

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// nftablesJSON reads the output of "nft -j", with one element in memory at a time.
// It is an object with a list of commands, {"nftables": [...]}, of which it reads
// the sets and the elements that are added to sets.
func (f *reader) nftablesJSON(c *collector, in *bufio.Reader) error {
	p := &nftJSON{newDocument(&c.text, in), c, wanted{names: f.Sets}, map[string]bool{}}
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
	return p.wanted.missing(p.c)
}

type nftJSON struct {
	document
	c      *collector
	wanted wanted
	others map[string]bool // sets of something else than addresses
}

// command reads one command: {"set": {...}}, {"element": {...}}, or one of them in
// {"add": ...} or {"create": ...}.
func (p *nftJSON) command() error {
	return p.object(func(verb string) error {
		switch verb {
		case "add", "create", "insert", "replace", "rename", "list", "metainfo":
			return p.object(p.item)
		case "delete", "destroy", "flush", "reset":
			return p.object(func(object string) error {
				var of *struct{ Name string }
				err := p.value(&of)
				name := ""
				if of != nil && object != "table" {
					name = of.Name
				}
				p.c.leave(verb)
				return cmp.Or(err, p.wanted.takes(verb, object, name, nftMend))
			})
		}
		return p.item(verb)
	})
}

// item reads the object that a command has, or that stands alone.
func (p *nftJSON) item(object string) error {
	switch object {
	case "set":
		return p.set(false)
	case "element":
		return p.set(true)
	case "map", "chain", "rule":
		p.c.leave(object)
	case "metainfo", "version", "release_name", "json_schema_version", "table", "ruleset", "counter", "quota", "limit", "ct helper", "ct timeout",
		"ct expectation", "flowtable", "secmark", "synproxy", "tunnel":
	default:
		return fmt.Errorf("%.60q is not read: %s", object, nftMend)
	}
	return p.skip()
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
			if p.others[name] = !bool(t); !t {
				p.c.leave("set " + name)
			}
			read, err = p.wanted.set(name, bool(t))
			return err
		case field != "elem":
			if !slices.Contains(nftOfSet, field) && !slices.Contains([]string{"family", "table", "handle", "type", "stmt", "map"}, field) {
				return fmt.Errorf("set %.60s: %.60q is not known, and may change its elements", name, field)
			}
			return p.skip()
		case name == "" || !typed && !added:
			return errors.New("elements before the set's name and type")
		case !typed && !p.others[name]:
			if read, err = p.wanted.set(name, true); err != nil {
				return err
			}
		}
		if !read {
			return p.skip()
		}
		p.wanted.fill(name)
		if t, err := p.token(); err != nil || t != json.Delim('[') { // one alone needs no list
			return cmp.Or(err, p.element(t))
		}
		return p.rest(func() error { return p.element(nil) })
	})
}

// element reads an element, of which a token may have been read.
func (p *nftJSON) element(begun json.Token) error {
	if begun != nil {
		text, ok := begun.(string)
		if !ok {
			return fmt.Errorf("%.60q instead of elements", fmt.Sprint(begun))
		}
		p.c.span(p.place(), text, text, 0)
		return nil
	}
	var e json.RawMessage
	if err := p.value(&e); err != nil {
		return err
	}
	at := p.place()
	at.offset -= int64(len(e)) // on the line where it ends
	if text := nftAddresses(e); text != "" {
		p.c.span(at, string(e), text, 0)
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
// address, a prefix or a range, with remarks at most.
func nftAddresses(element json.RawMessage) string {
	var address string
	if json.Unmarshal(element, &address) == nil {
		return address
	}
	var e map[string]json.RawMessage
	if json.Unmarshal(element, &e) != nil || len(e) != 1 {
		return ""
	}
	var inner map[string]json.RawMessage
	var prefix struct {
		Addr string
		Len  *int
	}
	var ends []string
	switch {
	case json.Unmarshal(e["range"], &ends) == nil && len(ends) == 2:
		return ends[0] + "-" + ends[1]
	case json.Unmarshal(e["prefix"], &prefix) == nil && prefix.Len != nil:
		return fmt.Sprintf("%s/%d", prefix.Addr, *prefix.Len)
	case json.Unmarshal(e["elem"], &inner) != nil:
		return ""
	}
	for name := range inner {
		if name != "val" && !slices.Contains(nftRemarks, name) {
			return ""
		}
	}
	return nftAddresses(inner["val"])
}

package feed

import (
	"encoding/json"
	"fmt"
	"io"
)

// document reads JSON of a known form, with one value in memory at a time.
type document struct {
	text *lines
	dec  *json.Decoder
}

// newDocument reads from in, which reads from text.
func newDocument(text *lines, in io.Reader) document { return document{text, json.NewDecoder(in)} }

// place returns the place behind what was read. The text must look up offsets.
func (p document) place() place { return p.at(p.dec.InputOffset()) }

// at returns the place of an offset. Offsets must be ascending.
func (p document) at(offset int64) place { return place{p.text.at(offset), offset} }

// object reads an object and calls field with the name of each field, to read its
// value.
func (p document) object(field func(name string) error) error {
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
func (p document) array(element func() error) error {
	if err := p.delim('['); err != nil {
		return err
	}
	return p.rest(element)
}

// arrayOrNull is array for a list that may be null.
func (p document) arrayOrNull(element func() error) error {
	t, err := p.token()
	switch {
	case err != nil || t == nil:
		return err
	case t != json.Delim('['):
		return fmt.Errorf("%.60q instead of a list", fmt.Sprint(t))
	}
	return p.rest(element)
}

// rest reads the rest of an array.
func (p document) rest(element func() error) error {
	for p.dec.More() {
		if err := element(); err != nil {
			return err
		}
	}
	return p.delim(']')
}

func (p document) delim(want json.Delim) error {
	t, err := p.token()
	if err == nil && t != want {
		err = fmt.Errorf("%.60q instead of %q", fmt.Sprint(t), want)
	}
	return err
}

func (p document) token() (json.Token, error) {
	p.text.begin(p.dec.InputOffset())
	t, err := p.dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}

// more reports whether another value follows. What is between two values is bounded like a record.
func (p document) more() bool {
	p.text.begin(p.dec.InputOffset())
	return p.dec.More()
}

// skip reads a value of any kind, token by token.
func (p document) skip() error {
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
func (p document) value(v any) error {
	p.text.begin(p.dec.InputOffset())
	err := p.dec.Decode(v)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// BodyTimeout bounds the time of a body.
const BodyTimeout = 2 * time.Minute // for MaxBody at 140 kB/s

// ReadBody reads a request's body of at most a number of bytes. Its time is bounded, and where it
// fails what is left of the body may take no longer.
func ReadBody(w http.ResponseWriter, q *http.Request, most int64, v any) error {
	connection := http.NewResponseController(w) // it may have no deadlines, as in tests
	_ = connection.SetReadDeadline(time.Now().Add(BodyTimeout))
	err := decode(http.MaxBytesReader(w, q.Body, most), v)
	if err == nil {
		_ = connection.SetReadDeadline(time.Time{})
	}
	return err
}

// decode reads one JSON value. Unknown fields are errors, and so are fields that are there
// twice.
func decode(r io.Reader, v any) error {
	var text bytes.Buffer
	d := json.NewDecoder(io.TeeReader(r, &text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			err = checkUnique(&text)
		} else if err == nil {
			err = errors.New("more than one JSON value")
		}
	}
	if err == nil {
		return nil
	}
	var tooLarge *http.MaxBytesError
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &tooLarge) && tooLarge.Limit != MaxBody:
		return Fail(http.StatusRequestEntityTooLarge, fmt.Errorf("more than %d MiB: send less at once", tooLarge.Limit>>20))
	case errors.As(err, &tooLarge):
		return Fail(http.StatusRequestEntityTooLarge, ErrTooLarge)
	case errors.As(err, &wrongType):
		err = fmt.Errorf("byte %d: %s: %s, where %s should be", wrongType.Offset, wrongType.Field, wrongType.Value, kinds[wrongType.Type.Kind()])
		if wrongType.Field == "" {
			err = fmt.Errorf("%s, where an object should be", wrongType.Value)
		}
	case errors.As(err, &syntax):
		err = fmt.Errorf("byte %d: %w", syntax.Offset, err)
	case err == io.EOF:
		err = errors.New("empty")
	}
	return &BadRequest{Err: fmt.Errorf("the request's body: %s", strings.TrimPrefix(err.Error(), "json: "))}
}

// checkUnique returns an error where an object of a JSON value has a name twice, which
// encoding/json compares without case.
func checkUnique(r io.Reader) error {
	d := json.NewDecoder(r)
	d.UseNumber()
	type level struct {
		names map[string]bool // folded; nil: of an array
		value bool            // the next token is the value of a name
	}
	var levels []level
	for {
		token, err := d.Token()
		if err != nil {
			return nil // it is at its end, since it was decoded before
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: make(map[string]bool)})
			continue
		case json.Delim('['):
			levels = append(levels, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
		if len(levels) == 0 {
			continue
		}
		in := &levels[len(levels)-1]
		name, isName := token.(string)
		if in.names == nil || in.value || !isName {
			in.value = false
			continue
		}
		folded := strings.Map(fold, name)
		if in.names[folded] {
			return fmt.Errorf("byte %d: %.60q is there twice", d.InputOffset(), name)
		}
		in.names[folded], in.value = true, true
	}
}

// fold returns the smallest of the characters that differ in case alone.
func fold(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// kinds are JSON's names for the kinds of a change's fields.
var kinds = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Float64: "a number", reflect.Slice: "an array", reflect.Bool: "true or false",
}

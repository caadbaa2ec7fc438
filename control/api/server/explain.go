package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"weir/control/api"
)

// maxExplaining bounds a request, in bytes: MaxExplained frames of 64 KiB in base64.
const maxExplaining = 24 << 20

// askAsIn adds to the error of a request without a question how to ask.
func askAsIn(path, question string, err error) error {
	if bad, ok := errors.AsType[*api.BadRequest](err); ok && question == "" {
		return &api.BadRequest{Err: fmt.Errorf("%w; ask as in %s?q=192.0.2.1", bad.Err, path)}
	}
	return err
}

// readPlaces reads whether the places of entries are asked for, as they are by default.
func readPlaces(q url.Values) (bool, error) {
	text := q.Get(api.PlacesParameter)
	if text == "" {
		return true, nil
	}
	places, err := strconv.ParseBool(text)
	if err != nil {
		return false, &api.BadRequest{Err: fmt.Errorf("%s %.20q: want true or false", api.PlacesParameter, text)}
	}
	return places, nil
}

func explainFrames(c Explainer, w http.ResponseWriter, q *http.Request) (e api.Explanations, err error) {
	var f api.Frames
	if err := api.ReadBody(w, q, maxExplaining, &f); err != nil {
		return e, err
	}
	if n := len(f.Frames); n == 0 || n > api.MaxExplained {
		return e, &api.BadRequest{Err: fmt.Errorf("%d frames: want 1 to %d", n, api.MaxExplained)}
	}
	for i, frame := range f.Frames {
		if len(frame) == 0 {
			return e, &api.BadRequest{Err: fmt.Errorf("frame %d is empty", i+1)}
		}
	}
	e.Explanations, err = c.ExplainFrames(q.Context(), f.Frames)
	e.Explanations = list(e.Explanations)
	return e, err
}

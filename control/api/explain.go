package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"weir/control/engine"
	"weir/control/quantity"
)

// Limits on a request to explain frames.
const (
	MaxExplained  = 256
	maxExplaining = 24 << 20 // bytes: MaxExplained frames of 64 KiB in base64
)

// Explanation is the verdict on the packets of a question, and its reasons: GET
// /v1/explain.
type Explanation struct {
	Question string          `json:"question"`
	Verdict  engine.Verdict  `json:"verdict"` // drop if any answer's is, otherwise limited if any is
	Answers  []engine.Answer `json:"answers"` // for an address or a prefix: from it, to it
}

// NewExplanation returns the explanation that consists of answers.
func NewExplanation(question string, answers ...engine.Answer) Explanation {
	e := Explanation{Question: question, Answers: list(answers)}
	for _, a := range answers {
		e.Verdict = max(e.Verdict, a.Verdict)
	}
	return e
}

// Drops reports whether any of the packets is dropped, as far as they are known.
func (e *Explanation) Drops() bool { return e.Verdict == engine.Drop }

// Passes reports whether all of the packets pass, whatever their number, as far as they are
// known.
func (e *Explanation) Passes() bool { return e.Verdict == engine.Pass }

// LimitText says what a limit is, and how much of its flow exceeds it.
func LimitText(l *engine.Limit) string {
	unit := map[string]string{"bytes": "B/s"}[l.Unit]
	if unit == "" {
		unit = "pps"
	}
	text := "rate-limited to " + quantity.SI(l.Rate, 2, unit)
	if l.Offered != nil {
		if over := *l.Offered - l.Rate; over > 0 {
			text += fmt.Sprintf(": %s of it are dropped now, %.0f%%", quantity.SI(over, 2, unit), 100*over / *l.Offered)
		} else {
			text += ": it is within that now"
		}
	}
	if l.Tracker != "" {
		text += fmt.Sprintf(" (tracker %s)", l.Tracker)
	}
	return text
}

// Frames are whole Ethernet frames to explain: POST /v1/explain.
type Frames struct {
	Frames [][]byte `json:"frames"` // in base64; at most MaxExplained
}

// Explanations are the explanations of frames, in the order of the request.
type Explanations struct {
	Explanations []Explanation `json:"explanations"`
}

// Explain asks a daemon a question, as [engine.ParseQuestion] reads it.
func Explain(ctx context.Context, c Daemon, question string) (e Explanation, err error) {
	asked, err := engine.ParseQuestion(question)
	if err != nil {
		return e, &BadRequest{Err: fmt.Errorf("%w; ask as in %s?q=192.0.2.1", err, explainPath)}
	}
	answers, err := c.Explain(ctx, asked)
	return NewExplanation(question, answers...), err
}

func explainFrames(c Daemon, w http.ResponseWriter, q *http.Request) (e Explanations, err error) {
	var f Frames
	if err := readBody(w, q, maxExplaining, &f); err != nil {
		return e, err
	}
	if n := len(f.Frames); n == 0 || n > MaxExplained {
		return e, &BadRequest{Err: fmt.Errorf("%d frames: want 1 to %d", n, MaxExplained)}
	}
	var asked []engine.Question
	for i, frame := range f.Frames {
		if len(frame) == 0 {
			return e, &BadRequest{Err: fmt.Errorf("frame %d is empty", i+1)}
		}
		asked = append(asked, engine.Question{Frame: frame})
	}
	answers, err := c.Explain(q.Context(), asked)
	for _, a := range answers {
		e.Explanations = append(e.Explanations, NewExplanation(a.Packet, a))
	}
	e.Explanations = list(e.Explanations)
	return e, err
}

// Explain returns the answer to a question, as [engine.ParseQuestion] reads it.
func (c *Client) Explain(ctx context.Context, question string) (*Explanation, error) {
	return ask[Explanation](ctx, c, http.MethodGet, explainPath+"?q="+url.QueryEscape(question), nil)
}

// ExplainFrames explains Ethernet frames, at most MaxExplained.
func (c *Client) ExplainFrames(ctx context.Context, frames [][]byte) ([]Explanation, error) {
	body, err := json.Marshal(Frames{frames})
	if err != nil {
		return nil, err
	}
	e, err := ask[Explanations](ctx, c, http.MethodPost, explainPath, body)
	if err != nil {
		return nil, err
	}
	return e.Explanations, nil
}

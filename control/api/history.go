package api

import (
	"fmt"
	"slices"
	"time"
)

// Defaults and limits of a question for the history.
const (
	DefaultHistory = 24 * time.Hour
	MaxHistory     = 30 * 24 * time.Hour

	// MinHistoryStep is the finest resolution, which is kept for DefaultHistory. Older
	// points have at least MinOldHistoryStep.
	MinHistoryStep    = 10 * time.Second
	MinOldHistoryStep = 15 * time.Minute

	// MaxHistoryPoints bounds an answer.
	MaxHistoryPoints = 10_000
)

// historySteps has the steps to choose from.
var historySteps = []time.Duration{
	MinHistoryStep, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	MinOldHistoryStep, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

// HistoryStep returns the finest step with which a time has at most a number of
// points.
func HistoryStep(since time.Duration, points int) time.Duration {
	for _, step := range historySteps {
		if since <= time.Duration(points)*step && (since <= DefaultHistory || step >= MinOldHistoryStep) {
			return step
		}
	}
	return historySteps[len(historySteps)-1]
}

// HistoryQuestion asks what passed and was dropped: GET /v1/history.
type HistoryQuestion struct {
	Since time.Duration // how far back, at most MaxHistory
	Step  time.Duration // of the points; 0: one of which there are at most 300
}

// History counts passed and dropped packets: GET /v1/history.
type History struct {
	Since  time.Time      `json:"since"`
	Until  time.Time      `json:"until"`
	Step   float64        `json:"step_seconds"` // may be longer than asked for: what is older than a day is kept by the quarter of an hour
	Points []HistoryPoint `json:"points"`       // in order; there is none of a step in which the daemon did not run
	Total  HistoryPoint   `json:"total"`
}

// HistoryPoint counts the passed and dropped packets of a step.
type HistoryPoint struct {
	Time    time.Time `json:"time"`    // begin of the step
	Seconds float64   `json:"seconds"` // for which was counted: less than the step where the daemon did not run all the time

	Passed       uint64 `json:"passed_packets"`
	PassedBytes  uint64 `json:"passed_bytes"`
	Dropped      uint64 `json:"dropped_packets"`
	DroppedBytes uint64 `json:"dropped_bytes"`

	Reasons []HistoryReason `json:"reasons"` // those of any packets, by name

	// What block lists have matched, also in monitor mode; the largest first, at most 32
	// in a point. A list may be here for the addresses with which this host has conversed alone.
	Lists []HistoryList `json:"lists"`
	Other uint64        `json:"other_lists_packets"` // that the lists have matched which are left out
}

// HistoryReason is the packets with a reason.
type HistoryReason struct {
	Reason  string `json:"reason"`
	Drops   bool   `json:"drops"` // they were dropped
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// HistoryList is the packets that a block list has matched.
type HistoryList struct {
	List    string `json:"list"` // "": it is unknown, as in approximate mode
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`

	// Packets that no other list would have dropped, as far as their addresses are known: noted every
	// ten minutes.
	Alone uint64 `json:"alone_packets,omitempty"`

	// With how many of the list's addresses this host had conversed in the last 24 hours, at
	// most: collateral.
	Conversed int `json:"addresses_day,omitempty"`
}

// Of leaves the figures of a list alone.
func (h *History) Of(list string) {
	h.Total.of(list)
	for i := range h.Points {
		h.Points[i].of(list)
	}
}

func (p *HistoryPoint) of(list string) {
	p.Lists = slices.DeleteFunc(p.Lists, func(l HistoryList) bool { return l.List != list })
	p.Other = 0
}

// Check returns what is wrong with a question, whose Step is chosen if it is 0.
func (q *HistoryQuestion) Check() error {
	switch {
	case q.Since <= 0 || q.Since > MaxHistory:
		return fmt.Errorf("since: want more than 0, and up to %dd", MaxHistory/(24*time.Hour))
	case q.Step != 0 && q.Step < MinHistoryStep:
		return fmt.Errorf("step: want at least %v", MinHistoryStep)
	case q.Step != 0 && q.Since/q.Step > MaxHistoryPoints:
		return fmt.Errorf("step: that is %d points, and there may be %d: want a longer one", q.Since/q.Step, MaxHistoryPoints)
	case q.Step == 0:
		const points = 300
		q.Step = HistoryStep(q.Since, points)
	}
	return nil
}

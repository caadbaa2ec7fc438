package learn

import (
	"log/slog"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/observe/events"
	"weir/filter/membership"
)

// What was counted before an observer began is not judged.
func TestJudge(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	o := NewObserver(Config{}, events.NewHub(log), log)
	var e engine.Generation
	e.Block = new(membership.Set)
	e.Block.Mode = membership.Exact
	o.Judge(&e, 1000, 500, time.Nanosecond, time.Time{})
	if rate, packets := o.Measured(); rate != nil || packets != 0 {
		t.Errorf("%v of %v packets, none of them judged", rate, packets)
	}
	o.Judge(&e, 1100, 501, time.Nanosecond, time.Time{})
	if rate, packets := o.Measured(); rate == nil || *rate != 0.01 || packets != 100 {
		t.Errorf("%v of %v packets, want 0.01 of 100", rate, packets)
	}
}

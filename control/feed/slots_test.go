package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// As many have slots as there are, until they release them or have had them for long.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := make(slots, 2)
		first, stuck := s.take(t.Context()), s.take(t.Context())
		taken := make(chan func(), 2)
		for range 2 {
			go func() { taken <- s.take(t.Context()) }()
		}
		synctest.Wait()
		if len(taken) != 0 {
			t.Fatal("more slots than there are")
		}
		first()
		synctest.Wait()
		if len(taken) != 1 {
			t.Fatal("a slot that was released is not taken")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s.take(ended)() // releases none
		(<-taken)()
		(<-taken)()
		time.Sleep(time.Second)
		began := time.Now()
		third, fourth := s.take(t.Context()), s.take(t.Context())
		if waited := time.Since(began); waited != slotTime-time.Second {
			t.Errorf("a slot that was taken a second ago is free after %v, not %v", waited, slotTime-time.Second)
		}
		stuck() // late, and its slot is another's
		if len(s) != 2 {
			t.Errorf("%d slots are taken, not 2", len(s))
		}
		third()
		fourth()
		if len(s) != 0 {
			t.Errorf("%d slots are taken, and all were released", len(s))
		}
	})
}

package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// Short messages do not wait for long ones, which wait for them: the rate holds.
func TestShortMessagesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 1 << 20
		var p pace
		began := time.Now()
		took := make(chan time.Duration, 1)
		go func() {
			_ = p.wait(t.Context(), 10*rate, rate) // the context does not end
			took <- time.Since(began)
		}()
		synctest.Wait()
		for range 32 {
			if err := p.wait(t.Context(), shortMessage, rate); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("short messages took %v", d)
		}
		if d := <-took; d != 10*time.Second {
			t.Errorf("the long message took %v", d)
		}
		if err := p.wait(t.Context(), rate, rate); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 13*time.Second {
			t.Errorf("all took %v", d)
		}
	})
}

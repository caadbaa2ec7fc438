package wire

import (
	"math/rand/v2"
	"time"
)

// Silence says when to make a connection anew over which the hub is not heard any more, though it is
// up: the server is cut off from the others, or a balancer keeps a flow that leads nowhere.
type Silence struct {
	heard time.Time     // last
	left  time.Time     // when the connection was made anew since
	wait  time.Duration // until it is; 0: not decided
}

// maxSilence bounds the time between two attempts: where the hub is gone, no connection helps.
const maxSilence = 5 * time.Minute

// Over reports that a connection, which is up since a time, is to be made anew: the hub was last heard
// before, and is to be heard each beat. The wait doubles until it is heard again.
func (s *Silence) Over(heard, up time.Time, beat time.Duration, now time.Time) bool {
	if s.wait == 0 || !heard.Equal(s.heard) {
		beat = max(beat, time.Second)
		*s = Silence{heard: heard, wait: 2*beat + time.Second + rand.N(beat+time.Second)} // not all nodes at once
	}
	for _, since := range []time.Time{heard, up, s.left} {
		if now.Sub(since) < s.wait {
			return false
		}
	}
	s.left, s.wait = now, min(2*s.wait+rand.N(s.wait), maxSilence)
	return true
}

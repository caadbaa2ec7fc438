package conntrack_test

import (
	"testing"
	"time"

	"weir/filter/conntrack"
)

func BenchmarkReplies(b *testing.B) {
	r := &conntrack.Replies{UDP: time.Minute, Ephemeral: 32768, Now: func() time.Duration { return 0 }}
	for port := range uint16(1000) {
		r.Remember(frameAndPacket("192.0.2.1", "198.51.100.53", 40000+port, 53))
	}
	f, p := frame("198.51.100.53", "192.0.2.1", 53, 40500)
	for b.Loop() {
		if !r.IsReply(f, p) {
			b.Fatal("the reply is not known")
		}
	}
}

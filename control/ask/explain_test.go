package ask

import (
	"net/netip"
	"testing"
	"time"

	"weir/control/explain"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/verdict"
)

// An answer names the penalties that all of its packets meet, and some of those that a part may.
func TestMeeting(t *testing.T) {
	var all []verdict.Penalty
	for i := range 8000 {
		src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		all = append(all, verdict.Penalty{Flow: key.Source(netip.PrefixFrom(src, 32)), Penalty: penalty.Penalty{Until: time.Hour}})
	}
	for question, want := range map[string]struct{ kept, more int }{
		"> 203.0.113.1":           {10, 7990},
		"198.18.3.3":              {1, 0},
		"192.0.2.1":               {0, 0},
		"198.18.3.0/24":           {10, 246},
		"tcp 198.18.3.3:1 > *:53": {1, 0},
	} {
		asked, err := explain.ParseQuestion(question)
		if err != nil {
			t.Fatal(err)
		}
		if kept, more := meeting(all, asked[0]); len(kept) != want.kept || more != want.more {
			t.Errorf("%s: %d penalties and %d more, want %+v", question, len(kept), more, want)
		}
	}
}

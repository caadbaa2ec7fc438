package feed

import "testing"

// Each failure has its own word, which metrics and the API have.
func TestFailureNames(t *testing.T) {
	for f, want := range map[Failure]string{
		NoFailure: "none", Unreachable: "unreachable", BadStatus: "status", TimedOut: "timeout", Stalled: "stalled", TooLarge: "too-large",
		Truncated: "truncated", Empty: "empty", Garbage: "garbage", Shrunk: "shrunk", Grown: "grown", Refused: "refused",
		Uncompiled: "uncompiled", BadChecksum: "checksum", BadSignature: "signature", Damaged: "damaged",
	} {
		if got := f.String(); got != want {
			t.Errorf("failure %d: %s, want %s", f, got, want)
		}
	}
}

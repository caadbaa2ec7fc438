package main

import (
	"strings"
	"testing"
)

// The program says what the documentation promises.
func TestStranger(t *testing.T) {
	var out strings.Builder
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	const want = `
bits a name: 9.6, in lines 10.9, weighted 6.4
bloom: 0 missing, 0.2 to 2 % of the queries wrong: true
blocked: 0 missing, 0.2 to 2 % of the queries wrong: true
counting: 0 missing, 0.2 to 2 % of the queries wrong: true
counting: removed true, and again false
weighted: 0 missing, 0.2 to 2 % of the queries wrong: true
counting: damaged bytes refused true, read again true
cuckoo: damaged bytes refused true, read again true
compressed: smaller true, equal true
host0: at least 2000 queries true, at most 2020 true; repeated true
bloomier: 44 true
quotient: 81 true, 82 false, removed true
snapshot: 19999 addresses, smaller true
invertible: true, 0 and 1 differ, host5 true
`
	if got := out.String(); got != want[1:] {
		t.Errorf("%s\nwant\n%s", got, want[1:])
	}
}

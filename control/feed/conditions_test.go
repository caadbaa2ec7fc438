package feed

import (
	"fmt"
	"strings"
	"testing"
)

// A step may have as many conditions as an element has bits for, each of which counts.
func TestMostConditions(t *testing.T) {
	path := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("f%d=yes", i))
		}
		return ".[" + strings.Join(all, "&") + "].ip"
	}
	var elements, want []string
	for unmet := range maxConditions + 1 { // all are met by the last element alone
		ip := fmt.Sprintf("192.0.2.%d", unmet)
		fields := []string{fmt.Sprintf(`"ip": %q`, ip)}
		for i := range maxConditions {
			value := "yes"
			if i == unmet {
				value = "no"
			}
			fields = append(fields, fmt.Sprintf(`"f%d": %q`, i, value))
		}
		elements, want = append(elements, "{"+strings.Join(fields, ", ")+"}"), []string{ip}
	}
	e, _, err := read(t, jsonAt(path(maxConditions)), strings.NewReader("["+strings.Join(elements, ", ")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(e); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := newReader(jsonAt(path(maxConditions + 1))); err == nil {
		t.Errorf("%d conditions are taken", maxConditions+1)
	}
}

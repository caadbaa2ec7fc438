package console

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"weir/control/plan"
)

// The page has the figures and the curves of package plan, with scripts and without.
func TestPlan(t *testing.T) {
	s := start(t)
	b := s.open(true)
	for query, want := range map[string]plan.Request{
		"":                                   {Entries: 1000, Mode: "exact"}, // the filter's nine, as far as the slider goes
		"?entries=70&given=exact":            {Entries: 10e6, Mode: "exact"},
		"?entries=63&given=bits&bits=14":     {Entries: 2e6, Mode: "approx", BitsPerEntry: 14},
		"?entries=70&given=memory&memory=52": {Entries: 10e6, Memory: 64 << 20},
		"?entries=60&given=memory&memory=60&bits=20": {Entries: 1e6, Memory: 1 << 30}, // exact, since that fits
	} {
		sizing, err := plan.Size(want)
		if err != nil {
			t.Fatal(err)
		}
		status, page := b.get(b.base + "plan" + query)
		if status != http.StatusOK || !strings.Contains(page, "<h2 id=\"h-plan\">") {
			t.Fatalf("%s: status %d\n%s", query, status, page)
		}
		q, _ := http.NewRequest(http.MethodGet, b.base+"plan"+query, nil)
		q.Header.Set("HX-Request", "true")
		_, part, _ := b.do(q)
		for name, text := range map[string]string{"page": page, "part": part} {
			for _, r := range sizing.Rows() {
				if !strings.Contains(text, "<dd>"+html.EscapeString(r.Text)+"</dd>") {
					t.Errorf("%s of %s lacks %s: %s", name, query, r.Name, r.Text)
				}
			}
			if n := strings.Count(text, `class="curve `); n != 4 {
				t.Errorf("%s of %s has %d curves", name, query, n)
			}
			if marks := strings.Count(text, "<circle"); sizing.FalseDrop > 0 && marks != 2 {
				t.Errorf("%s of %s marks %d points", name, query, marks)
			}
		}
		if !regexp.MustCompile(`^<p class="sum".*hx-swap-oob="true">`).MatchString(strings.ReplaceAll(part, "\n", " ")) {
			t.Errorf("the part of %s does not move the sliders:\n%s", query, part)
		}
	}
	for _, query := range []string{"?entries=300", "?entries=x", "?bits=0", "?memory=71", "?given=<b>", "?entries=83&given=memory&memory=32"} {
		if status, text := b.get(b.base + "plan" + query); status != http.StatusOK || !strings.Contains(text, "result failed") || strings.Contains(text, "<b>") {
			t.Errorf("%s: status %d", query, status)
		}
	}
}

// A curve falls with more bits, and grows with more entries: each of its points is a plan.
func TestCurves(t *testing.T) {
	rates, memory := drawn.ratesOf(60), drawn.memoryOf(14)
	for i := range 2 {
		if len(rates[i]) != mostBits-leastBits+1 || len(memory[i]) < 15 {
			t.Fatalf("%d and %d points", len(rates[i]), len(memory[i]))
		}
		for n := 1; n < len(rates[i]); n++ {
			if rates[i][n].y >= rates[i][n-1].y {
				t.Errorf("false drops %v after %v", rates[i][n], rates[i][n-1])
			}
		}
		for n := 1; n < len(memory[i]); n++ {
			if memory[i][n].y <= memory[i][n-1].y {
				t.Errorf("memory %v after %v", memory[i][n], memory[i][n-1])
			}
		}
	}
	s, err := plan.Size(plan.Request{Entries: 1e6, Mode: "approx", BitsPerEntry: 14})
	if err != nil || rates[0][14-leastBits].y != s.FalseDrop || rates[1][14-leastBits].y != s.Standard.Exact {
		t.Errorf("%v, %v, want %+v, %v", rates[0][14-leastBits], rates[1][14-leastBits], s, err)
	}
}

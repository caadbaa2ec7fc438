package console

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/dustin/go-humanize"

	"weir/control/plan"
)

// slider is an input whose positions are numbers of a plan.
type slider struct {
	name, label string
	least, most int
	value       func(position int) int
	show        func(value int) string
}

// The sliders of the plan. Those of entries and memory are logarithmic.
var (
	entriesSlider = slider{"entries", "Entries", 30, 83, func(p int) int { return twoDigits(math.Pow(10, float64(p)/10)) }, count[int]}
	bitsSlider    = slider{"bits", "Bits an entry", leastBits, mostBits, func(p int) int { return p }, func(bits int) string { return fmt.Sprint(bits) }}
	memorySlider  = slider{"memory", "Memory", 32, 70, func(p int) int { return int(math.Exp2(float64(p)/2)) &^ 1023 }, size}
)

// The range of bits an entry: exact mode takes about as much as the largest.
const leastBits, mostBits = 4, 32

// twoDigits rounds to two significant digits.
func twoDigits(v float64) int {
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	return int(math.Round(v/unit) * unit)
}

// What a plan is given, beside the number of entries.
const (
	byExact  = "exact"
	byBits   = "bits"
	byMemory = "memory"
)

// planView is a plan that a page shows.
type planView struct {
	given  string         // byExact, byBits or byMemory
	at     map[string]int // positions of sliders
	wrong  string         // about the question
	sizing plan.Sizing
}

// newPlan returns the plan that a query asks for; what it does not name is as the filter
// is now.
func newPlan(query url.Values, entries int, mode string) (p planView) {
	p.given = byExact
	if mode == "approx" {
		p.given = byBits
	}
	now := 60
	if entries > 0 {
		now = int(math.Round(10 * math.Log10(float64(entries))))
	}
	p.at = map[string]int{
		entriesSlider.name: min(max(now, entriesSlider.least), entriesSlider.most), bitsSlider.name: plan.DefaultBitsPerEntry, memorySlider.name: 48,
	}
	for _, s := range []slider{entriesSlider, bitsSlider, memorySlider} {
		text := query.Get(s.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < s.least || n > s.most {
			p.wrong = fmt.Sprintf("%s=%.20q: want %d to %d", s.name, text, s.least, s.most)
			return p
		}
		p.at[s.name] = n
	}
	switch given := query.Get("given"); given {
	case "":
	case byExact, byBits, byMemory:
		p.given = given
	default:
		p.wrong = fmt.Sprintf("given=%.20q: want %s, %s or %s", given, byExact, byBits, byMemory)
		return p
	}
	var err error
	if p.sizing, err = plan.Size(p.request()); err != nil {
		p.wrong = strings.TrimPrefix(err.Error(), "plan: ")
	}
	return p
}

func (p *planView) value(s slider) int { return s.value(p.at[s.name]) }

// request returns the question for package plan.
func (p *planView) request() plan.Request {
	r := plan.Request{Entries: p.value(entriesSlider)}
	switch p.given {
	case byExact:
		r.Mode = "exact"
	case byBits:
		r.Mode, r.BitsPerEntry = "approx", float64(p.value(bitsSlider))
	case byMemory:
		r.Memory = p.value(memorySlider)
	}
	return r
}

// command is the command line that prints the same plan.
func (p *planView) command() string {
	line := fmt.Sprintf("weir plan --entries %d", p.value(entriesSlider))
	switch p.given {
	case byBits:
		return line + fmt.Sprintf(" --bits-per-entry %d", p.value(bitsSlider))
	case byMemory:
		return line + fmt.Sprintf(" --memory %dKiB", p.value(memorySlider)>>10)
	}
	return line + " --mode exact"
}

// sentence says what the plan comes to.
func (p *planView) sentence() string {
	s := &p.sizing
	text := fmt.Sprintf("%s entries in %s mode take %s of the kernel's memory", count(s.Entries), s.Mode, size(s.KernelBytes))
	if s.FalseDrop == 0 {
		return text + ", and no unlisted packet is dropped."
	}
	return text + fmt.Sprintf(", and drop %s by mistake.", odds(&s.FalseDrop))
}

// bits is the size of approximate filters that the plan is compared with.
func (p *planView) bits() int {
	if p.sizing.Mode == "approx" {
		return min(max(int(math.Round(p.sizing.BitsPerEntry)), leastBits), mostBits)
	}
	return p.value(bitsSlider)
}

// point is one of a curve.
type point struct{ x, y float64 }

// curves are computed once for each position of a slider: a point takes a millisecond.
type curves struct {
	mu     sync.Mutex
	rates  map[int][2][]point // by position of entries: false drops by bits an entry, and those of standard filters
	memory map[int][2][]point // by bits an entry: bytes by entries, exact and approximate
}

var drawn = curves{rates: make(map[int][2][]point), memory: make(map[int][2][]point)}

func (c *curves) ratesOf(position int) [2][]point {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, ok := c.rates[position]
	if ok {
		return all
	}
	for bits := leastBits; bits <= mostBits; bits++ {
		s, err := plan.Size(plan.Request{Entries: entriesSlider.value(position), Mode: "approx", BitsPerEntry: float64(bits)})
		if err == nil {
			all[0] = append(all[0], point{float64(bits), s.FalseDrop})
			all[1] = append(all[1], point{float64(bits), s.Standard.Exact})
		}
	}
	c.rates[position] = all
	return all
}

func (c *curves) memoryOf(bits int) [2][]point {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, ok := c.memory[bits]
	if ok {
		return all
	}
	for p := entriesSlider.least; p <= entriesSlider.most; p += 3 {
		n := entriesSlider.value(p)
		for i, r := range []plan.Request{{Entries: n, Mode: "exact"}, {Entries: n, Mode: "approx", BitsPerEntry: float64(bits)}} {
			if s, err := plan.Size(r); err == nil {
				all[i] = append(all[i], point{float64(n), float64(s.KernelBytes)})
			}
		}
	}
	c.memory[bits] = all
	return all
}

// plan answers with a plan.
func (c *Console) plan(w http.ResponseWriter, q *http.Request, one *session) {
	v := c.look(one)
	v.beside = true
	c.planned(q, v)
	if !partial(q) {
		show(w, q, v.planPage)
		return
	}
	show(w, q, func(m *markup) {
		v.planPart(m)
		for _, s := range []slider{entriesSlider, bitsSlider, memorySlider} {
			v.position(m, s, ` hx-swap-oob="true"`)
		}
	})
}

// planned adds the plan that a request asks for.
func (c *Console) planned(q *http.Request, v *view) {
	entries, mode := 0, ""
	if v.Top != nil {
		entries, mode = v.Top.Filter.Entries, v.Top.Filter.Mode
	}
	v.plan = newPlan(q.URL.Query(), entries, mode)
}

// planPage writes a page that has the plan alone.
func (v *view) planPage(m *markup) {
	v.begin(m)
	v.planSection(m)
	end(m)
}

func (v *view) planSection(m *markup) {
	m.add(`<section class="full" id="plan" aria-labelledby="h-plan"><h2 id="h-plan">Plan</h2>
<form id="plan-form" method="get" action="%splan#plan" hx-get="%splan" hx-target="#p-plan" hx-trigger="input delay:100ms, submit" hx-sync="this:replace"><div class="row">
`, v.path(), v.path())
	v.slider(m, entriesSlider)
	m.add(`<fieldset><legend>Given</legend>`)
	for _, g := range [][2]string{{byExact, "exact mode"}, {byBits, "bits an entry"}, {byMemory, "memory"}} {
		checked := literal("")
		if g[0] == v.plan.given {
			checked = " checked"
		}
		m.add(`<label class="choice"><input type="radio" id="given-%s" name="given" value="%s"`+checked+`> %s</label>`, g[0], g[0], g[1])
	}
	m.add("</fieldset>\n")
	v.slider(m, bitsSlider)
	v.slider(m, memorySlider)
	m.add(`<span class="bottom"><button>Plan</button></span></div></form>
<div id="p-plan">`)
	v.planPart(m)
	m.add("</div></section>\n")
}

func (v *view) slider(m *markup, s slider) {
	m.add(`<span class="grow"><label for="%s">%s: `, "plan-"+s.name, s.label)
	v.position(m, s, "")
	m.add(`</label><input type="range" id="%s" name="%s" min="%s" max="%s" value="%s" data-given="%s"></span>
`, "plan-"+s.name, s.name, s.least, s.most, v.plan.at[s.name], s.name)
}

// position writes the number that a slider is at.
func (v *view) position(m *markup, s slider, attribute literal) {
	m.add(`<output id="%s" for="%s"`+attribute+`>%s</output>`, "at-"+s.name, "plan-"+s.name, s.show(v.plan.value(s)))
}

func (v *view) planPart(m *markup) {
	p := &v.plan
	if p.wrong != "" {
		m.add(`<div class="result failed"><p>%s</p></div>`, p.wrong)
		return
	}
	m.add(`<p class="sum" role="status">%s</p><div class="figured"><div><dl class="pairs">`, p.sentence())
	for _, r := range p.sizing.Rows() {
		m.add(`<dt>%s</dt><dd>%s</dd>`, r.Name, r.Text)
	}
	m.add(`</dl><p class="quiet">Without markers. The same by <code>%s</code>.</p></div>`, p.command())

	rates := drawn.ratesOf(p.at[entriesSlider.name])
	bits := axis{least: leastBits, most: mostBits, show: func(v float64) string { return fmt.Sprint(v) }}
	for b := 4; b <= mostBits; b += 4 {
		bits.ticks = append(bits.ticks, float64(b))
	}
	rate := axis{least: 1, most: 1, log: true, show: func(v float64) string { return fmt.Sprintf("%.0e", v) }}
	for _, r := range rates[0] {
		rate.least = min(rate.least, r.y)
	}
	rate.least = math.Pow(10, math.Floor(math.Log10(max(rate.least, 1e-12))))
	for r := rate.least; r <= 1.1; r *= 100 {
		rate.ticks = append(rate.ticks, r)
	}
	var here []point
	if p.sizing.FalseDrop > 0 {
		here = []point{{p.sizing.BitsPerEntry, p.sizing.FalseDrop}}
	}
	m.add(`<figure><figcaption>False drops by bits an entry: <span class="is-passed">weir</span>, <span class="is-dropped">standard filter (dashed)</span></figcaption>`)
	m.chart("False drops by bits an entry. The figures of this plan are beside it.", bits, rate, rates, here)

	entries := axis{least: 1e3, most: 2e8, log: true, ticks: []float64{1e3, 1e4, 1e5, 1e6, 1e7, 1e8}, show: func(v float64) string { return humanize.SIWithDigits(v, 0, "") }}
	bytes := axis{least: 1 << 10, most: 1 << 35, log: true, ticks: []float64{1 << 10, 1 << 15, 1 << 20, 1 << 25, 1 << 30, 1 << 35}, show: func(v float64) string { return size(int(v)) }}
	m.add(`</figure><figure><figcaption>Memory by entries: <span class="is-passed">exact</span>, <span class="is-dropped">approximate, %s bits an entry (dashed)</span></figcaption>`, p.bits())
	m.chart("Memory by entries. The figures of this plan are beside it.", entries, bytes, drawn.memoryOf(p.bits()), []point{{float64(p.sizing.Entries), float64(p.sizing.KernelBytes)}})
	m.add(`</figure></div>`)
}

// axis is one of a chart.
type axis struct {
	least, most float64
	log         bool
	ticks       []float64
	show        func(float64) string
}

// at returns where on the axis a value is, from 0 to 1.
func (a *axis) at(v float64) float64 {
	if a.log {
		return math.Log(max(v, 1e-300)/a.least) / math.Log(a.most/a.least)
	}
	return (v - a.least) / (a.most - a.least)
}

// chart writes curves, and the points that are marked, where they are within the axes.
func (m *markup) chart(label string, x, y axis, lines [2][]point, marked []point) {
	const left, top, width, height = 62, 8, 320, 180
	place := func(p point) (px, py float64, inside bool) {
		h, v := x.at(p.x), y.at(p.y)
		return left + width*h, top + height*(1-v), h >= -0.001 && h <= 1.001 && v >= -0.001 && v <= 1.001
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	m.add(`<svg class="plot" viewBox="0 0 400 215" role="img" aria-label="%s">`, label)
	for _, t := range x.ticks {
		px, _, _ := place(point{t, y.least})
		m.add(`<path class="grid" d="M%s %sv%s"/><text class="below" x="%s" y="%s">%s</text>`, number(px), top, height, number(px), top+height+16, x.show(t))
	}
	for _, t := range y.ticks {
		_, py, _ := place(point{x.least, t})
		m.add(`<path class="grid" d="M%s %sh%s"/><text class="beside" x="%s" y="%s">%s</text>`, left, number(py), width, left-6, number(py+4), y.show(t))
	}
	for i, line := range lines {
		var d strings.Builder
		for _, p := range line {
			px, py, inside := place(p)
			if !inside {
				continue
			}
			step := "L"
			if d.Len() == 0 {
				step = "M"
			}
			d.WriteString(step + number(px) + " " + number(py))
		}
		m.add(`<path class="%s" d="%s"/>`, [2]string{"curve first", "curve second"}[i], d.String())
	}
	for _, p := range marked {
		if px, py, inside := place(p); inside {
			m.add(`<circle cx="%s" cy="%s" r="5"/>`, number(px), number(py))
		}
	}
	m.add(`</svg>`)
}

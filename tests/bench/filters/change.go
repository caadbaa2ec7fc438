package main

import (
	"fmt"

	"weir/filter/hash"
	"weir/tests/bench/filters/adaptive"
	"weir/tests/bench/filters/growing"
	"weir/tests/bench/filters/window"
)

// mending writes the table of filters to which mistakes are reported.
func mending(p *page) error {
	p.text(mendingText)
	keys := keysFrom(0, entries)
	var rows, cited [][]string
	for _, k := range adaptive.Kinds {
		row := []string{bold(k.Name, k.Weir)}
		for i, queries := range []func(f adaptive.Filter) func(yield func(uint64) bool){
			func(adaptive.Filter) func(yield func(uint64) bool) { return adaptive.Zipf(120_000, 400_000, 3) },
			func(f adaptive.Filter) func(yield func(uint64) bool) { return adaptive.Repeated(f, 100, 100, 4) },
			func(f adaptive.Filter) func(yield func(uint64) bool) { return adaptive.Repeated(f, 1000, 100, 5) },
			func(f adaptive.Filter) func(yield func(uint64) bool) { return adaptive.Repeated(f, 10_000, 100, 6) },
		} {
			f := k.New(keys, 12*entries, 1)
			if i == 0 {
				row = append(row, fmt.Sprintf("%.2f", float64(f.Bits())/entries))
			}
			row = append(row, percent(adaptive.Wrong(f, queries(f))))
			for _, key := range keys {
				if !f.Contains(key) {
					return fmt.Errorf("%s: key %#x is missing", k.Name, key)
				}
			}
		}
		rows, cited = append(rows, row), append(cited, []string{k.Name, k.Source})
	}
	p.table([]string{"filter", "bits an entry", "Zipf 1.1: wrong %", "100 repeated", "1,000 repeated", "10,000 repeated"}, rows...)
	p.text(mendingVerdict)
	p.table([]string{"filter", "source"}, cited...)
	return nil
}

// growth writes the table of filters that grow.
func growth(p *page) error {
	p.text(growthText)
	const first, doublings = 1600, 7
	const last = first << doublings
	var rows, cited [][]string
	for _, k := range growing.Kinds {
		f := k.New(first, aim, 1)
		row, next := []string{bold(k.Name, k.Weir)}, first
		for i := range last {
			f.Add(hash.Nth(1, uint64(i)))
			if i+1 != next {
				continue
			}
			next *= 2
			if n := i + 1; n == first || n == first<<3 || n == last {
				wrong := 0
				for q := range uint64(1_000_000) {
					if f.Contains(hash.Nth(2, q)) {
						wrong++
					}
				}
				row = append(row, fmt.Sprintf("%.1f", float64(f.Bits())/float64(n)), percent(float64(wrong)/1_000_000))
			}
		}
		for i := range last {
			if !f.Contains(hash.Nth(1, uint64(i))) {
				return fmt.Errorf("%s: key %d is missing", k.Name, i)
			}
		}
		needs := "no"
		if k.Keys {
			needs = "all"
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", float64(f.Peak())/last), needs))
		cited = append(cited, []string{k.Name, k.Source})
	}
	p.table([]string{"filter", "1,600: bits an entry", "counted %", "12,800: bits", "counted %", "204,800: bits", "counted %", "bits at most while growing", "reads keys"}, rows...)
	p.text(growthVerdict)
	p.table([]string{"filter", "source"}, cited...)
	return nil
}

// windows writes the table of detectors of bursts.
func windows(p *page) error {
	p.text(windowsText)
	const length, threshold, bursts = 100_000, 200, 400
	header := []string{"detector", "KiB"}
	rows, cited := make([][]string, len(window.Kinds)), make([][]string, len(window.Kinds))
	for i, k := range window.Kinds {
		rows[i], cited[i] = []string{bold(k.Name, k.Weir), ""}, []string{k.Name, k.Source}
	}
	for n, within := range []struct {
		name    string
		packets int
	}{{"a hundredth", length / 100}, {"a half", length / 2}, {"a whole", length}} {
		stream, flows := window.Bursts(20*length, bursts, threshold, within.packets, uint64(n+1))
		all := []window.Detector{window.NewExact(length, threshold)}
		for _, k := range window.Kinds {
			d, err := k.New(length, threshold)
			if err != nil {
				return fmt.Errorf("%s: %w", k.Name, err)
			}
			all = append(all, d)
		}
		for _, d := range all {
			for _, f := range stream {
				d.Count(f)
			}
		}
		truth := all[0].Found()
		here := 0
		for _, f := range flows {
			if truth[f] {
				here++
			}
		}
		for i, d := range all[1:] {
			found, number, right := d.Found(), 0, 0
			for _, f := range flows {
				if truth[f] && found[f] {
					number++
				}
			}
			for f := range found {
				if truth[f] {
					right++
				}
			}
			rows[i][1] = fmt.Sprint(d.Bytes() >> 10)
			rows[i] = append(rows[i], fmt.Sprintf("%.3f", float64(number)/float64(here)), fmt.Sprintf("%.3f", float64(right)/float64(len(found))))
		}
		header = append(header, within.name+" window: bursts found", "precision")
	}
	p.table(header, rows...)
	p.text(windowsVerdict)
	p.table([]string{"detector", "source"}, cited...)
	return nil
}

func bold(name string, weir bool) string {
	if weir {
		return "**" + name + "**"
	}
	return name
}

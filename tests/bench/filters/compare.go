package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"weir/control/capture"
	"weir/filter/hash"
	"weir/filter/key"
	frame "weir/filter/packet"
	"weir/tests/bench/filters/heavy"
	"weir/tests/bench/filters/learned"
	"weir/tests/bench/filters/member"
	"weir/tests/data"
)

// Sizes of the comparison of filters: enough entries that sizes are as for millions, and
// queries that chance moves a rate of 2^-8 by 1.1 %.
const (
	entries = 100_000
	queries = 2_000_000
	sampled = 50_000 // of which lines are counted
	aim     = 8.0    // the wanted rate is 2^-aim
)

// atOneRate writes the table of filters made for a rate.
func atOneRate(p *page) error {
	p.text(atOneRateText)
	keys := keysFrom(0, entries)
	var rows [][]string
	for _, k := range member.Kinds {
		f, rate, err := build(k, keys, aim)
		if err != nil {
			return err
		}
		bits, bound := float64(f.Bits())/entries, "–"
		if rate > 0 { // an exact set has another bound
			bound = fmt.Sprintf("%.2f", bits/-math.Log2(rate))
		}
		rows = append(rows, []string{name(k), fmt.Sprintf("%.2f", bits), bound,
			percent(k.Rate(entries, aim)), percent(rate),
			fmt.Sprintf("%.2f", member.Lines(f, keysFrom(entries, sampled))),
			fmt.Sprintf("%.2f", member.Lines(f, keys[:sampled])), changes(k)})
	}
	p.table([]string{"filter", "bits an entry", "of the least", "predicted %", "counted %",
		"lines, absent", "lines, present", "changes in place"}, rows...)
	p.text(filtersVerdict)
	var sources [][]string
	for _, k := range member.Kinds {
		sources = append(sources, []string{name(k), k.Source})
	}
	p.table([]string{"filter", "source"}, sources...)
	return nil
}

// inOneMemory writes the table of filters that have a number of bits.
func inOneMemory(p *page) error {
	p.text(inOneMemoryText)
	keys := keysFrom(0, entries)
	var rows [][]string
	for _, k := range member.Kinds {
		row, fits := []string{name(k)}, false
		for _, budget := range []float64{12, 20} {
			r := k.Fit(entries, budget)
			if r == 0 {
				row = append(row, "–", "–", "–")
				continue
			}
			fits = true
			f, rate, err := build(k, keys, r)
			if err != nil {
				return err
			}
			row = append(row, fmt.Sprintf("%.2f", float64(f.Bits())/entries), percent(k.Rate(entries, r)), percent(rate))
		}
		if fits {
			rows = append(rows, row)
		}
	}
	p.table([]string{"filter", "12 bits: used", "predicted %", "counted %", "20 bits: used", "predicted %", "counted %"}, rows...)
	p.text(inOneMemoryVerdict)
	return nil
}

// build makes a filter, and counts its rate. It is an error if the filter lacks a key.
func build(k member.Kind, keys []uint64, r float64) (f member.Filter, rate float64, err error) {
	if f, err = k.Build(keys, r, 1); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", k.Name, err)
	}
	for _, key := range keys {
		if !f.Contains(key) {
			return nil, 0, fmt.Errorf("%s: key %#x is missing", k.Name, key)
		}
	}
	hits := 0
	for i := range uint32(queries) {
		if f.Contains(member.Key(entries+i, 1)) {
			hits++
		}
	}
	return f, float64(hits) / queries, nil
}

// keysFrom returns n keys, from the first with a number on.
func keysFrom(first, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = member.Key(uint32(first+i), 1)
	}
	return keys
}

func name(k member.Kind) string {
	if k.Weir {
		return "**" + k.Name + "**"
	}
	return k.Name
}

func changes(k member.Kind) string {
	if k.Changes == "" {
		return "none"
	}
	return k.Changes
}

func percent(rate float64) string {
	switch {
	case rate == 0:
		return "0"
	case rate < 1e-9:
		return "< 0.0000001"
	case rate >= 0.995:
		return "100"
	}
	return fmt.Sprintf("%.2g", 100*rate)
}

// The traffic of the comparison of sketches.
const (
	packets     = 1_000_000
	flows       = 1_000_000
	heavyShare  = 0.0002 // of the packets, from which a flow is heavy
	captureName = "pcap/mix-dev.pcap.zst"
)

// sketches writes the tables of sketches.
func sketches(p *page) error {
	r := rand.New(rand.NewPCG(1, 1))
	z := rand.NewZipf(r, 1.1, 1, flows-1)
	zipf := make([]uint64, packets)
	for i := range zipf {
		zipf[i] = hash.Nth(1, 1+z.Uint64())
	}
	captured, err := capturedFlows()
	if err != nil {
		return err
	}
	p.text(sketchesText, heavy.WeirSlot, heavy.Slot)
	for _, stream := range []struct {
		name    string
		packets []uint64
		kib     []int
	}{
		{"Zipf's distribution with an exponent of 1.1", zipf, []int{16, 64, 128}},
		{"The capture", captured, []int{16, 64, 128}},
	} {
		truth := make(map[uint64]uint64)
		for _, f := range stream.packets {
			truth[f]++
		}
		threshold := uint64(math.Ceil(heavyShare * float64(len(stream.packets))))
		number := 0
		for _, n := range truth {
			if n >= threshold {
				number++
			}
		}
		p.text("%s: %s packets of %s flows, of which %d are heavy, with %d packets or more.",
			stream.name, thousands(len(stream.packets)), thousands(len(truth)), number, threshold)
		var rows [][]string
		for _, slot := range []int{heavy.WeirSlot, heavy.Slot} {
			for i, k := range heavy.Kinds {
				if i == 0 && slot != heavy.WeirSlot {
					continue
				}
				title := k.Name
				if i == 0 {
					title = "**" + title + "**"
				}
				bytes := slot
				if slot == heavy.Slot {
					bytes += k.Field
				}
				row := []string{title, fmt.Sprint(bytes)}
				for _, kib := range stream.kib {
					s, err := k.New(kib<<10, bytes, threshold, 1)
					if err != nil {
						return fmt.Errorf("%s: %w", k.Name, err)
					}
					for _, f := range stream.packets {
						s.Count(f)
					}
					score := heavy.Judge(s, truth, threshold)
					row = append(row, fmt.Sprintf("%.3f, %.3f", score.Precision, score.Recall), fmt.Sprintf("%.3f", score.F1), fmt.Sprintf("%.4f", score.Error))
				}
				rows = append(rows, row)
			}
		}
		header := []string{"sketch", "bytes a slot"}
		for _, kib := range stream.kib {
			header = append(header, fmt.Sprintf("%d KiB: precision, recall", kib), "F1", "error")
		}
		p.table(header, rows...)
	}
	p.text(sketchesVerdict)
	var sources [][]string
	for _, k := range heavy.Kinds {
		sources = append(sources, []string{k.Name, k.Source})
	}
	p.table([]string{"sketch", "source"}, sources...)
	return nil
}

// thousands writes a number with commas.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// capturedFlows returns the flow of each packet of a capture, in their order.
func capturedFlows() (all []uint64, err error) {
	dir, err := data.Find()
	if err != nil {
		return nil, fmt.Errorf("no captures (set WEIR_DATA to their directory): %w", err)
	}
	numbers := make(map[key.Tuple]uint64)
	err = data.Walk(dir, func(name string, r *capture.Reader) error {
		if name != captureName {
			return nil
		}
		for packet, err := range r.All() {
			if err != nil {
				return err
			}
			parsed, _ := frame.Parse(packet.Data)
			if !parsed.Src.IsValid() {
				continue
			}
			n, ok := numbers[parsed.Tuple]
			if !ok {
				n = hash.Nth(2, uint64(len(numbers)+1))
				numbers[parsed.Tuple] = n
			}
			all = append(all, n)
		}
		return nil
	})
	if err == nil && all == nil {
		err = fmt.Errorf("no capture %s in %s", captureName, dir)
	}
	return all, err
}

// Sizes of the comparison of filters that have learned.
const (
	tasks        = 20
	addresses    = 40_000
	sources      = 120_000
	memory       = 10 * addresses // bits
	packetsToSee = 400_000
)

// learning writes the tables of filters that know the traffic.
func learning(p *page) error {
	p.text(learningText)
	for _, differ := range []bool{true, false} {
		alphas := []float64{0.8, 1.1, 1.4}
		predicted, counted := make([][]float64, len(learned.Kinds)), make([][]float64, len(learned.Kinds))
		for i := range learned.Kinds {
			predicted[i], counted[i] = make([]float64, len(alphas)), make([]float64, len(alphas))
		}
		for a, alpha := range alphas {
			for n := range uint64(tasks) {
				task := learned.NewTask(addresses, sources, memory, packetsToSee, alpha, differ, n)
				for i, k := range learned.Kinds {
					f, rate := k.New(task, n)
					for _, key := range task.Listed {
						if !f.Contains(key) {
							return fmt.Errorf("%s: key %#x is missing", k.Name, key)
						}
					}
					predicted[i][a] += rate / tasks
					counted[i][a] += task.FalseDrops(f) / tasks
				}
			}
		}
		if differ {
			p.text("Where networks differ: listed addresses and sources are each spread over %s networks by Zipf's distribution, independently.", thousands(learned.Networks))
		} else {
			p.text("Where networks do not differ: both are spread evenly.")
		}
		header := []string{"filter"}
		for _, alpha := range alphas {
			header = append(header, fmt.Sprintf("Zipf %.1f: predicted %%", alpha), "counted %")
		}
		var rows [][]string
		for i, k := range learned.Kinds {
			title := k.Name
			if k.Weir {
				title = "**" + title + "**"
			}
			row := []string{title}
			for a := range alphas {
				row = append(row, percent(predicted[i][a]), percent(counted[i][a]))
			}
			rows = append(rows, row)
		}
		p.table(header, rows...)
	}
	p.text(learningVerdict)
	var rows [][]string
	for _, k := range learned.Kinds {
		rows = append(rows, []string{k.Name, k.Source})
	}
	p.table([]string{"filter", "source"}, rows...)
	return nil
}

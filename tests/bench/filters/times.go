package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/bench/filters/member"
)

// measureTimes writes the table of times: the part of the page that depends on the machine.
func measureTimes(p *page) error {
	sizes := []int{1_000_000, 10_000_000}
	header := []string{"filter"}
	for _, n := range sizes {
		header = append(header, fmt.Sprintf("%d M: build, ns an entry", n/1_000_000), "absent, ns", "present, ns")
	}
	var rows [][]string
	for _, k := range member.Kinds {
		row := []string{name(k)}
		for _, n := range sizes {
			keys, absent := keysFrom(0, n), keysFrom(n, asked)
			rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			before, err := processorTime()
			if err != nil {
				return err
			}
			f, err := k.Build(keys, aim, 1)
			if err != nil {
				return fmt.Errorf("%s: %w", k.Name, err)
			}
			after, err := processorTime()
			if err != nil {
				return err
			}
			row = append(row, fmt.Sprintf("%.0f", float64(after-before)/float64(n)),
				fmt.Sprintf("%.1f", lookUp(f, absent)), fmt.Sprintf("%.1f", lookUp(f, keys[:asked])))
			runtime.GC()
		}
		rows = append(rows, row)
	}
	p.text("Measured on %s with %d CPUs, %s.", processor(), runtime.NumCPU(), runtime.Version())
	p.table(header, rows...)
	p.b.WriteString("\n")
	return nil
}

const asked = 1_000_000

// lookUp returns the nanoseconds of a look-up. The keys are asked in pieces, each several times:
// the fastest time of a piece counts, since all else that the machine does can only add to it.
func lookUp(f member.Filter, keys []uint64) float64 {
	var sum time.Duration
	const piece = 20_000
	for keys := range slices.Chunk(keys, piece) {
		fastest := time.Hour
		for range 3 {
			hits, start := 0, time.Now()
			for _, key := range keys {
				if f.Contains(key) {
					hits++
				}
			}
			runtime.KeepAlive(hits)
			fastest = min(fastest, time.Since(start))
		}
		sum += fastest
	}
	return float64(sum) / float64(len(keys))
}

// processorTime returns the time that the process has used, on all CPUs.
func processorTime() (time.Duration, error) {
	var usage unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

// processor returns the processor's name.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "an unknown processor"
}

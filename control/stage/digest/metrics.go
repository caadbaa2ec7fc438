package digest

import (
	"weir/control/stage"
	"weir/loader"
)

var (
	packets = &stage.Family{Name: "weir_digest_packets_total", Help: "Packets that passed and whose digests were recorded.", Counter: true}
	skipped = &stage.Family{Name: "weir_digest_skipped_packets_total", Help: "Packets that passed without a digest, because they are truncated or malformed.", Counter: true}
	kept    = &stage.Family{Name: "weir_digest_slices", Help: "Time slices whose digests are in memory."}
	memory  = &stage.Family{Name: "weir_digest_bytes", Help: "Memory of digests, the kernel's included."}
	fill    = &stage.Family{Name: "weir_digest_fill_ratio", Help: "Share of the bits that are set in the last time slice."}
	chance  = &stage.Family{Name: "weir_digest_false_positive_ratio", Help: "Probability that the last time slice matches a packet that did not pass."}
	loops   = &stage.Family{Name: "weir_digest_loops_suspected_total", Help: "Packets that came repeatedly with a decreasing TTL, as in a routing loop.", Counter: true}
	saved   = &stage.Family{Name: "weir_digest_archive_slices", Help: "Time slices of digests on disk.", Host: true}
	disk    = &stage.Family{Name: "weir_digest_archive_bytes", Help: "Disk space of digests.", Host: true}
	unsaved = &stage.Family{Name: "weir_digest_archive_errors_total", Help: "Time slices of digests that could not be written to disk.", Counter: true, Host: true}
)

// Families are the metrics of digests.
var Families = []*stage.Family{packets, skipped, kept, memory, fill, chance, loops, saved, disk, unsaved}

// Samples returns what was recorded on each interface since it was first recorded, and what
// is archived.
func (r *Recorder) Samples() (all []stage.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part == nil {
		return nil
	}
	for _, l := range r.logs {
		put := func(f *stage.Family, value float64) {
			all = append(all, stage.Sample{Family: f, At: l.Target, Value: value})
		}
		n := l.total()
		put(packets, float64(n.packets))
		put(skipped, float64(n.skipped))
		put(loops, float64(n.loops))
		filters := len(l.slices)
		if l.stats != nil {
			filters += banks * loader.CPUs()
		}
		put(kept, float64(len(l.slices)))
		put(memory, float64(filters*r.part.Filter.Bytes()))
		var last struct{ fill, chance float64 }
		if n := len(l.slices); n > 0 {
			last.fill, last.chance = l.slices[n-1].Filter.FillRatio(), l.slices[n-1].Chance()
		}
		put(fill, last.fill)
		put(chance, last.chance)
	}
	if r.archive != nil {
		n := r.archive.Counts()
		all = append(all, stage.Sample{Family: saved, Value: float64(n.Files)}, stage.Sample{Family: disk, Value: float64(n.Bytes)},
			stage.Sample{Family: unsaved, Value: float64(n.Errors)})
	}
	return all
}

package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir/filter/hash"
)

// Hashes are programs that hash, with one secret.
type Hashes struct{ coll *ebpf.Collection }

// LoadHashes loads the program of Sums.
func LoadHashes(s *hash.Secret) (*Hashes, error) {
	return loadHashes(s, nil, benchProgHashWords)
}

// LoadHashLoops loads the programs of Loop.
func LoadHashLoops(s *hash.Secret, k *Keys) (*Hashes, error) {
	var loops []string
	for _, length := range HashLengths {
		loops = append(loops, fmt.Sprintf("loop_universal%d", length), fmt.Sprintf("loop_xxh%d", length))
	}
	return loadHashes(s, map[string]*ebpf.Map{benchMapBenchKeys: k.m}, loops...)
}

// HashLengths are the lengths, in bytes, of the inputs of Loop: HASH_LOOP in
// bench.bpf.c.
var HashLengths = []int{8, 16, 20, 28, 40, 60}

func loadHashes(s *hash.Secret, replacements map[string]*ebpf.Map, programs ...string) (*Hashes, error) {
	spec, err := newSpec()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[benchVarBenchSecret].Set(s); err != nil {
		return nil, fmt.Errorf("set the hash's secret: %w", err)
	}
	coll, err := loadOnly(spec, programs, replacements)
	if err != nil {
		return nil, fmt.Errorf("load hashes: %w", err)
	}
	return &Hashes{coll}, nil
}

// Sums returns the secret's hashes of the first 0, 4, 8, … bytes of words,
// which are little-endian.
func (h *Hashes) Sums(words [8]uint64) ([hash.MaxLen/4 + 1]uint64, error) {
	v, program := h.coll.Variables[benchVarBenchHashes], h.coll.Programs[benchProgHashWords]
	hashes := struct {
		Words [8]uint64
		Sums  [hash.MaxLen/4 + 1]uint64
	}{Words: words}
	if err := v.Set(&hashes); err != nil {
		return hashes.Sums, err
	}
	if _, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
		return hashes.Sums, fmt.Errorf("run %s: %w", benchProgHashWords, err)
	}
	err := v.Get(&hashes)
	return hashes.Sums, err
}

// Loop returns the nanoseconds from a key to its hash, the mean of at least n:
// "universal20" and "xxh20" for keys of 20 bytes, made in registers.
func (h *Hashes) Loop(name string, n int) (float64, error) {
	p := h.coll.Programs["loop_"+name]
	if p == nil {
		return 0, errors.New("no loop of that name: " + name)
	}
	_, mean, err := p.Benchmark(make([]byte, 64), (n+loopLookups-1)/loopLookups, nil)
	if err != nil {
		return 0, fmt.Errorf("run loop_%s: %w", name, err)
	}
	return float64(mean.Nanoseconds()) / loopLookups, nil
}

// Close releases programs and maps.
func (h *Hashes) Close() { h.coll.Close() }

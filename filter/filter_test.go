// Tests of all structures together: their vocabulary and their encodings.
package filter_test

import (
	"bytes"
	"encoding"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"weir/filter/attenuated"
	"weir/filter/blocked"
	"weir/filter/bloom"
	"weir/filter/bloomier"
	"weir/filter/cascade"
	"weir/filter/counting"
	"weir/filter/cuckoo"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/filter/internal/sealed"
	"weir/filter/invertible"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/quotient"
	"weir/filter/reconcile"
	"weir/filter/sketch"
	"weir/filter/stable"
	"weir/filter/weighted"
	"weir/tests/must"
)

// The vocabulary. Elements are byte strings, which have twins of these methods for their hashes,
// or else E is the type of the elements: hashes or keys.
type (
	adder[E any]     interface{ Add(e E) }
	hashAdder        interface{ AddHash(h uint64) }
	container[E any] interface{ Contains(e E) bool }
	hashContainer    interface{ ContainsHash(h uint64) bool }
	remover[E any]   interface{ Remove(e E) bool }
	hashRemover      interface{ RemoveHash(h uint64) bool }
	codec            interface {
		encoding.BinaryAppender
		encoding.BinaryMarshaler
		encoding.BinaryUnmarshaler
	}
	// A table of keys has a number for each, and may be full.
	table[E any] interface {
		Add(e E, list uint16) error
		remover[E]
	}
)

var (
	_ interface {
		adder[[]byte]
		hashAdder
		container[[]byte]
		hashContainer
		codec
	} = (*bloom.Filter)(nil)
	_ interface {
		adder[[]byte]
		hashAdder
		container[[]byte]
		hashContainer
		remover[[]byte]
		hashRemover
		codec
	} = (*counting.Filter)(nil)
	_ interface {
		adder[[]byte]
		container[[]byte]
		codec
	} = (*weighted.Filter)(nil)
	_ interface {
		adder[uint64]
		container[uint64]
		codec
	} = (*blocked.Filter)(nil)
	_ interface {
		adder[uint64]
		container[uint64]
	} = (*cascade.Filter)(nil)
	_ interface {
		table[uint64]
		container[uint64]
		codec
	} = (*cuckoo.Table)(nil)
	_ interface {
		adder[[]byte]
		remover[[]byte]
		codec
	} = (*counting.MinimumSelection)(nil)
	_ interface {
		adder[[]byte]
		codec
	} = (*counting.MinimalIncrease)(nil)
	_ interface {
		adder[[]byte]
		hashAdder
	} = (*counting.SpaceCode)(nil)
	_ interface {
		adder[[]byte]
		remover[[]byte]
		codec
	} = (*attenuated.Tree)(nil)
	_ table[key.Key]  = (*membership.Set)(nil)
	_ table[uint64]   = (*quotient.Set)(nil)
	_ adder[uint64]   = (*invertible.Table)(nil)
	_ remover[[]byte] = (*attenuated.Router)(nil)
	_ remover[[]byte] = (*reconcile.Publisher)(nil)
	_ codec           = (*attenuated.Filter)(nil)
	_ codec           = (*bloomier.Filter)(nil)
	_ codec           = (*flood.Detector)(nil)
	_ codec           = (*sketch.Sketch[uint32])(nil)
	_ codec           = (*sketch.Sketch[uint64])(nil)
	_ codec           = (*stable.Filter)(nil)
)

// verbs maps the verbs of other libraries to the one that is used here.
var verbs = map[string]string{
	"Insert": "Add", "Put": "Add", "Set": "Add", "Delete": "Remove", "Del": "Remove",
	"Has": "Contains", "Test": "Contains", "Exists": "Contains", "Find": "Lookup", "Get": "Lookup",
}

// others are methods of these names that do something else.
var others = map[string]string{
	"attenuated.Grid.Find":        "routes a message",
	"attenuated.Tree.Find":        "routes a request",
	"icarus.Node.Insert":          "writes an option into a packet",
	"icarus.Node.InsertForwarded": "likewise",
	"reconcile.Differential.Get":  "reads a record",
	"reconcile.Differential.Put":  "writes a record",
	"membership.Hot.Find":         "has no key",
}

// A structure does not call the same thing by another name.
func TestVocabulary(t *testing.T) {
	seen := 0
	for pkg, files := range sources(t) {
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv == nil || !fn.Name.IsExported() {
					continue
				}
				seen++
				of := pkg + "." + receiver(fn.Recv.List[0].Type) + "." + fn.Name.Name
				word := regexp.MustCompile(`^[A-Z][a-z]*`).FindString(fn.Name.Name)
				if want, ok := verbs[word]; ok && others[of] == "" && word != "Set" {
					t.Errorf("%s: the word here is %s", of, want)
				}
			}
		}
	}
	if seen < 200 {
		t.Errorf("%d methods: the test shows too little", seen)
	}
}

func receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}

// sources returns the parsed files of each package, without tests.
func sources(t *testing.T) map[string][]*ast.File {
	return parsed(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") })
}

func parsed(t *testing.T, take func(name string) bool) map[string][]*ast.File {
	t.Helper()
	all := make(map[string][]*ast.File)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || !take(path) || strings.HasPrefix(path, "internal") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if dir := filepath.Dir(path); dir != "." {
			all[dir] = append(all[dir], f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each package shows how it is used, by an example that is run, and how long it takes.
func TestExamplesAndBenchmarks(t *testing.T) {
	dirs, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	tests := parsed(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	for _, d := range dirs {
		if !d.IsDir() || d.Name() == "internal" {
			continue
		}
		var example, benchmark bool
		for _, f := range tests[d.Name()] {
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
					benchmark = benchmark || strings.HasPrefix(fn.Name.Name, "Benchmark")
					example = example || strings.HasPrefix(fn.Name.Name, "Example") && runs(f, fn)
				}
			}
		}
		if !example || !benchmark {
			t.Errorf("%s: example %v, benchmark %v", d.Name(), example, benchmark)
		}
	}
}

// runs reports whether an example has an output to compare with.
func runs(f *ast.File, fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool {
		return c.Pos() > fn.Pos() && c.End() < fn.End() && regexp.MustCompile(`(?i)^(unordered )?output:`).MatchString(c.Text())
	})
}

// kind is a structure that has an encoding.
type kind struct {
	name  string
	full  func() codec // with elements
	empty func() codec // to decode into
}

func firstByte(b []byte) int { return int(b[0]) }

var universe = weighted.Universe{{Count: 100, Frequency: 9, Likelihood: 0.1}, {Count: 1000, Frequency: 1, Likelihood: 0.2}}

var kinds = []kind{
	{"bloom", func() codec {
		f := bloom.New(must.Have(bloom.For(20, 0.02)), 7)
		each(func(b []byte) { f.Add(b) })
		return f
	}, func() codec { return new(bloom.Filter) }},
	{"counting", func() codec {
		f := counting.New(must.Have(bloom.For(20, 0.02)), 7)
		each(func(b []byte) { f.Add(b) })
		return f
	}, func() codec { return new(counting.Filter) }},
	{"minimum selection", func() codec {
		f := counting.NewMinimumSelection(must.Have(bloom.Partitioned(47, 5)), 7)
		each(f.Add)
		return f
	}, func() codec { return new(counting.MinimumSelection) }},
	{"minimal increase", func() codec {
		f := counting.NewMinimalIncrease(must.Have(bloom.Standard(47, 5)), 7)
		each(f.Add)
		return f
	}, func() codec { return new(counting.MinimalIncrease) }},
	{"weighted", func() codec {
		f := must.Have(weighted.New(universe, firstByte, 301))
		each(func(b []byte) { f.Add(append([]byte{b[0] & 1}, b...)) })
		return f
	}, func() codec { return must.Have(weighted.New(universe, firstByte, 64)) }},
	{"blocked", func() codec {
		f := blocked.New(must.Have(blocked.For(40, 0.02)))
		each(func(b []byte) { f.Add(hash.Sum(7, b)) })
		return f
	}, func() codec { return new(blocked.Filter) }},
	{"cuckoo", func() codec {
		f := cuckoo.New(24)
		each(func(b []byte) {
			for range 2 { // the second shares its slot
				if err := f.Add(hash.Sum(7, b), 3); err != nil {
					panic(err)
				}
			}
		})
		return f
	}, func() codec { return cuckoo.New(1) }},
	{"bloomier", func() codec {
		var entries []bloomier.Entry
		each(func(b []byte) {
			entries = append(entries, bloomier.Entry{Hash: hash.Sum(7, b), Value: uint64(b[0] & 7)})
		})
		return must.Have(bloomier.New(entries, 3, 9))
	}, func() codec { return new(bloomier.Filter) }},
	{"flood", func() codec {
		d := new(flood.Detector)
		for i := range 3 {
			d.Second(make([]flood.Record, i), 40)
		}
		return d
	}, func() codec { return new(flood.Detector) }},
	{"sketch of 32 bits", func() codec {
		f := must.Have(sketch.New[uint32](sketch.Rows, 3, 11))
		each(func(b []byte) { f.Add(hash.Sum(7, b), 5) })
		return f
	}, func() codec { return new(sketch.Sketch[uint32]) }},
	{"sketch of 64 bits", func() codec {
		f := must.Have(sketch.New[uint64](sketch.TwoLines, 2, 2))
		each(func(b []byte) { f.Add(hash.Sum(7, b), 1<<40) })
		return f
	}, func() codec { return new(sketch.Sketch[uint64]) }},
	{"stable", func() codec {
		f := must.Have(stable.New(stable.Params{Algorithm: stable.IBFMC, Cells: 101, Bits: 3, K: 4, P: 2}, rand.NewPCG(1, 1)))
		each(func(b []byte) { f.Add(hash.Sum(7, b), 2) })
		return f
	}, func() codec { return new(stable.Filter) }},
	{"attenuated", func() codec {
		return attenuated.New(must.Have(bloom.Standard(70, 2)), 7, 3)
	}, func() codec { return new(attenuated.Filter) }},
}

func each(do func(b []byte)) {
	for i := range 20 {
		do(fmt.Append(nil, i, "a"))
	}
}

// A structure that has AppendBinary is among those that are tested here.
func TestKinds(t *testing.T) {
	for pkg, files := range sources(t) {
		for _, f := range files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv == nil || fn.Name.Name != "AppendBinary" {
					continue
				}
				of := pkg + "." + receiver(fn.Recv.List[0].Type)
				if of == "bloom.Geometry" || of == "attenuated.Tree" { // which have tests of their own
					continue
				}
				if !slices.ContainsFunc(kinds, func(k kind) bool {
					return strings.HasSuffix(strings.SplitN(fmt.Sprintf("%T", k.empty()), "[", 2)[0], of)
				}) {
					t.Errorf("%s has an encoding that is not tested", of)
				}
			}
		}
	}
}

// What is decoded is encoded to the same bytes; what is damaged or cut short is refused, and
// changes nothing.
func TestEncodings(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			b := must.Have(k.full().AppendBinary([]byte("before")))
			b, ok := bytes.CutPrefix(b, []byte("before"))
			if !ok {
				t.Fatal("what was there before is lost")
			}
			d := k.empty()
			if err := d.UnmarshalBinary(b); err != nil {
				t.Fatal(err)
			}
			if again := must.Have(d.MarshalBinary()); !bytes.Equal(again, b) {
				t.Fatalf("% x\nis encoded as\n% x", b, again)
			}
			for i := range b {
				damaged := bytes.Clone(b)
				damaged[i] ^= 1 << (i % 8)
				for _, bad := range [][]byte{damaged, b[:i], append(bytes.Clone(b), 0)} {
					err := d.UnmarshalBinary(bad)
					if err == nil {
						t.Fatalf("damage at byte %d is not found", i)
					}
					if !strings.Contains(err.Error(), "decode") {
						t.Fatalf("%v: does not say that decoding failed", err)
					}
				}
			}
			if again := must.Have(d.MarshalBinary()); !bytes.Equal(again, b) {
				t.Error("what was refused has changed the receiver")
			}
			for _, other := range kinds {
				if other.name != k.name && other.empty().UnmarshalBinary(b) == nil {
					t.Errorf("it is taken for %s", other.name)
				}
			}
		})
	}
}

// An encoding that claims to be large, with a checksum that is right, takes no more memory than
// its bytes are worth.
func TestHostileEncodings(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			b := must.Have(k.full().AppendBinary(nil))
			body := b[:len(b)-8]
			for i := 5; i < min(40, len(body)); i++ {
				for _, x := range []byte{0, 1, 0x7f, 0xff} {
					hostile := bytes.Clone(body)
					hostile[i] = x
					d := k.empty()
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					_ = d.UnmarshalBinary(sealed.Seal(hostile, 0))
					runtime.ReadMemStats(&after)
					if took := after.TotalAlloc - before.TotalAlloc; took > 1<<16+64*uint64(len(b)) {
						t.Fatalf("byte %d set to %#x: %d bytes of memory for %d", i, x, took, len(b))
					}
				}
			}
		})
	}
}

// Whatever is accepted is encoded to the same bytes.
func FuzzUnmarshal(f *testing.F) {
	for i, k := range kinds {
		b := must.Have(k.full().AppendBinary(nil))
		f.Add(uint8(i), b[:len(b)-8])
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		k := kinds[int(kind)%len(kinds)]
		b = sealed.Seal(b, 0)
		d := k.empty()
		if d.UnmarshalBinary(b) != nil {
			return
		}
		if again, err := d.AppendBinary(nil); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: % x is encoded as % x, %v", k.name, b, again, err)
		}
	})
}

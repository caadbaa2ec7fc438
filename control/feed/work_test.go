package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/list/listfile"
	"weir/control/quantity"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/timed"
	"weir/tests/wait"
)

// hostileBudget is the processor time that a hostile source may take, of the five seconds
// that are the default.
var hostileBudget = long.Or(time.Second/4, time.Second)

// hostileLimit bounds an attempt's processor time, that of the server and the garbage collector
// included, also where the number of lines ends it.
var hostileLimit = long.Or(3*time.Second/2, 3*time.Second)

var tooMuchWork = fmt.Sprintf("more than %v of processor time (raise max_cpu to accept it)", hostileBudget)

// hostile are texts that take long to read, of which little is served.
var hostile = []struct {
	name   string
	format Format
	write  func(w io.Writer)
	want   string
	lines  bool // it is the number of lines that ends it
}{
	{"bad lines", Format{}, repeat("x\n", 100_000_000), "too many bad lines", true},
	{"blank lines", Format{}, repeat("\n", 250_000_000), "more than 50000000 lines", true},
	{"comments", Format{}, repeat("#\n", 120_000_000), "more than 50000000 lines", false},
	{"bad records", Format{Kind: CSV, Column: "1"}, repeat("x,\n", 80_000_000), "too many bad lines", false},
	{"bad values", Format{Kind: JSON, Path: ".[]"}, repeat("[", 1, repeat("1,", 100_000_000)), "too many bad lines", false},
	{"other values", Format{Kind: JSON, Path: ".a[]"}, repeat(`{"b":[`, 1, repeat("[],", 80_000_000)), tooMuchWork, false},
	{"documents", Format{Kind: JSONLines, Path: ".ip"}, repeat("{}\n", 80_000_000), "too many bad lines", false},
	{"statements", Format{Kind: NFTables}, repeat("add table a;", 120_000_000), tooMuchWork, false},
	{"sections", Format{Kind: Deny}, repeat("<a>\n", 60_000_000), "more than 50000000 lines", false},
	{"decisions", Format{Kind: CrowdSec}, repeat(`{"deleted":[],"new":[`, 1, repeat("{},", 80_000_000)), tooMuchWork, false},
	{"empty blocks", Format{}, emptyBlocks(40 << 20), tooMuchWork, false},
	{"empty blocks of JSON", Format{Kind: JSON, Path: ".[]"}, emptyBlocks(40 << 20), tooMuchWork, false},
}

// emptyBlocks returns a function that writes a stream of gzip of about the given number of
// bytes. It has no text, but blocks whose codes take long to prepare.
func emptyBlocks(size int) func(io.Writer) {
	return func(w io.Writer) {
		var bits []byte // one each
		number := func(v, n int) {
			for i := range n {
				bits = append(bits, byte(v>>i&1))
			}
		}
		// Not the last block, of dynamic codes: 257 of literals, and 1 of distances, the
		// lengths of which have codes themselves: 18 and 1, of one bit each.
		number(0, 1)
		number(2, 2)
		number(0, 5)
		number(0, 5)
		number(14, 4)
		for _, of := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1} {
			if of == 18 || of == 1 {
				number(1, 3)
			} else {
				number(0, 3)
			}
		}
		const one, zeros = 0, 1 // in the order of the lengths
		number(one, 1)          // literal 0
		number(zeros, 1)
		number(138-11, 7)
		number(zeros, 1)
		number(117-11, 7)
		number(one, 1) // literal 256, the end of the block
		number(one, 1) // distance 0
		number(1, 1)   // the end
		var blocks []byte
		bits = bytes.Repeat(bits, 8) // which end with a byte
		for i := 0; i < len(bits); i += 8 {
			var b byte
			for j := range 8 {
				b |= bits[i+j] << j
			}
			blocks = append(blocks, b)
		}
		_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255})
		for range size / len(blocks) {
			_, _ = w.Write(blocks)
		}
	}
}

// serveHostile serves a text, which write compresses, and returns a feed of it.
func serveHostile(t *testing.T, format Format, write func(io.Writer)) *Feed {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	write(f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if format.Kind == CrowdSec {
			w.Header().Set("Content-Encoding", "gzip")
		}
		http.ServeFile(w, r, path)
	}))
	t.Cleanup(s.Close)
	c := Config{Name: "hostile", Spec: DefaultSpec(Source{URL: URL(s.URL)})}
	c.Format = format
	return mustOpen(t, c, "")
}

// However little is served, a source takes no more processor time than it may, and
// rests for long after it.
func TestHostile(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			f := serveHostile(t, c.format, c.write)
			f.sources[0].MaxCPU = quantity.Duration(hostileBudget)
			if c.lines {
				f.sources[0].MaxCPU = quantity.Duration(time.Hour)
			}
			began := timed.Process(t)
			outcomes, err := f.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			took := timed.Process(t) - began
			t.Logf("%v of processor time: %.200v", took, outcomes[0].Err)
			if err := outcomes[0].Err; err == nil || !strings.Contains(err.Error(), c.want) && (c.lines || !strings.Contains(err.Error(), tooMuchWork)) || len(err.Error()) > 1000 {
				t.Errorf("error %.500v, want %q", err, c.want)
			}
			if took > hostileLimit {
				t.Errorf("%v of processor time", took)
			}
			// The server and the garbage collector take up to half of the process's time, and
			// more than that of an attempt that ends at once.
			if rest := f.wait(1, outcomes[0].retryAfter); took > 100*time.Millisecond && rest < restPerWork/2*took {
				t.Errorf("it rests for %v after %v", rest, took)
			}
		})
	}
}

// A source rests for the work of an attempt that has failed, but not of one that was good,
// nor if its answer has broken off for the first time in a row.
func TestRest(t *testing.T) {
	good := addresses(100_000)
	var broken atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.Header().Set("Content-Length", strconv.Itoa(len(good)+1))
		}
		_, _ = io.WriteString(w, good)
	})
	c := config(from(s))
	c.Sources[0].MaxBytes = 16 << 20
	c.Hold = true
	f := mustOpen(t, c, t.TempDir())
	for i, step := range []struct {
		broken bool
		rests  bool
	}{{true, false}, {false, false}, {true, true}, {true, true}} { // undecided contents leave the first failure in the row
		broken.Store(step.broken)
		o := fetch(t, f)
		if (o.Failure == Truncated) != step.broken || (o.retryAfter > 0) != step.rests {
			t.Errorf("attempt %d: %v, %v, it rests for %v", i, o.Result, o.Err, o.retryAfter)
		}
	}
	if err := f.Keep(f.Version()); err != nil {
		t.Fatal(err)
	}
	if broken.Store(true); fetch(t, f).retryAfter > 0 {
		t.Error("it rests after an answer that has broken off once")
	}
	good = "192.0.2.1\n" + good
	broken.Store(false)
	f.sources[0].next = time.Now() // as Run sets it
	if o := fetch(t, f); o.Result != New {
		t.Fatal(o.Err)
	}
	f.Revert(f.Version(), errors.New("it does not fit"))
	rest := f.sources[0].last.retryAfter
	if rest <= 0 || f.sources[0].next.Before(time.Now().Add(rest/2)) {
		t.Errorf("contents that do not fit: it rests for %v, the next attempt is at %v", rest, f.sources[0].next)
	}
}

// Reading ends within the time in which a service manager stops a service.
func TestFetchEnds(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			f := serveHostile(t, c.format, c.write)
			f.MaxBad = 1
			f.sources[0].MaxCPU = quantity.Duration(time.Hour)
			runtime.GC() // what tests before this one have left is not this one's work
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			began := timed.Process(t)
			_, err := f.Fetch(ctx)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			// The server's and the collector's are among it: beside others, up to a second.
			if took := timed.Process(t) - began; took > 2*time.Second {
				t.Errorf("%v of processor time until the end", took)
			}
		})
	}
}

// What was saved is loaded whatever it takes, unless that is interrupted.
func TestOpenEnds(t *testing.T) {
	directory, path := t.TempDir(), filepath.Join(t.TempDir(), "list")
	must.Write(t, path, bytes.Repeat([]byte("192.0.2.1\n192.0.2.2\n"), 100_000))
	c := Config{Name: "l", Spec: DefaultSpec(Source{File: Path(path)})}
	f := mustOpen(t, c, directory)
	if _, err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f = mustOpen(t, c, directory); f.Contents().Len() != 2 {
		t.Errorf("%d entries are saved", f.Contents().Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, c, directory); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Many equal ranges take no memory, and are no more entries than one.
func TestEqualRanges(t *testing.T) {
	const line = "2001:db8::1-2001:db8:ffff:ffff:ffff:ffff:ffff:fffe\n"
	f := serveHostile(t, Format{}, repeat(line+"2001:db9::1-2001:db9:ffff:ffff:ffff:ffff:ffff:fffe\n", 200_000))
	outcomes, err := f.Fetch(t.Context())
	if err != nil || outcomes[0].Err != nil {
		t.Fatal(err, outcomes[0].Err)
	}
	one, err := listfile.ParseEntry(strings.TrimSpace(line))
	if err != nil || f.Contents().Len() != 2*one.Len() {
		t.Errorf("%d entries, want twice %d", f.Contents().Len(), one.Len())
	}
}

// However many sources of STIX wait for their servers, others are read.
func TestSilentSTIX(t *testing.T) {
	const begin = `{"objects":[`
	asked := make(chan struct{}, 100)
	silent := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", taxiiType)
		if strings.HasSuffix(r.URL.Path, "/objects/") && r.URL.Query().Get("next") == "" { // the first page arrives
			fmt.Fprint(w, `{"more": true, "next": "b", "objects": []}`)
			return
		}
		fmt.Fprint(w, begin)
		_ = http.NewResponseController(w).Flush()
		asked <- struct{}{}
		<-r.Context().Done()
	})
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, good)
	for _, kind := range []Kind{STIX, TAXII} {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		processors := runtime.GOMAXPROCS(0)
		for range processors {
			f := mustOpen(t, named("iocs", Format{Kind: kind}, from(silent)), "")
			all.Go(func() {
				if _, err := f.Fetch(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		for range processors {
			<-asked
		}
		time.Sleep(100 * time.Millisecond) // until they wait
		f := mustOpen(t, config(Source{File: Path(path)}), "")
		done := make(chan struct{})
		go func() {
			defer close(done)
			if o, err := f.Fetch(ctx); err != nil || o[0].Result != New {
				t.Errorf("beside silent servers of %v: %+v, %v", kind, o, err)
			}
		}()
		select {
		case <-done:
		case <-time.After(wait.Patience):
			t.Errorf("beside silent servers of %v, a file is not read", kind)
		}
		cancel()
		<-done
		all.Wait()
	}
}

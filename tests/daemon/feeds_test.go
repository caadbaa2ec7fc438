package daemon

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"weir/control/compressed"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/data"
	"weir/tests/long"
	"weir/tests/wait"
)

// version is a list as it was at a time.
type version struct {
	name    string
	text    []byte
	entries []list.V4Prefix
	has     map[list.V4Prefix]bool
	lengths [33]bool // that entries have
}

// shortest is the least number of bits of an entry.
const shortest = 8

// covers reports whether an address is listed, without any of weir's
// structures.
func (v *version) covers(a netip.Addr) bool { return v.entry(a) != 0 }

// entry returns the longest entry that covers an address, 0 for none.
func (v *version) entry(a netip.Addr) list.V4Prefix {
	b := a.As4()
	address := binary.BigEndian.Uint32(b[:])
	for bits := 32; bits >= shortest; bits-- {
		if p := list.V4(address&^(1<<(32-bits)-1), bits); v.lengths[bits] && v.has[p] {
			return p
		}
	}
	return 0
}

// history reads the first versions of a list from feeds: one from each file, or those that
// an archive has.
func history(t *testing.T, most int, feeds ...string) (all []*version) {
	t.Helper()
	for _, name := range feeds {
		if err := readFeed(filepath.Join(data.Dir(t), "feeds", name), func(name string, text io.Reader) error {
			if len(all) == most {
				return io.EOF // the rest of an archive takes long to read
			}
			v, err := newVersion(name, text)
			all = append(all, v)
			return err
		}); err != nil && err != io.EOF {
			t.Fatal(err)
		}
	}
	return all
}

func readFeed(path string, version func(name string, text io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if !strings.HasSuffix(path, ".tar.zst") {
		z, err := compressed.NewReader(f)
		if err != nil {
			return err
		}
		defer z.Close()
		return version(path, z)
	}
	z, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer z.Close()
	for members := tar.NewReader(z); ; {
		m, err := members.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil && m.Typeflag == tar.TypeReg {
			err = version(filepath.Dir(m.Name), members)
		}
		if err != nil {
			return err
		}
	}
}

func newVersion(name string, text io.Reader) (*version, error) {
	v := &version{name: name, has: make(map[list.V4Prefix]bool)}
	var err error
	if v.text, err = io.ReadAll(text); err != nil {
		return nil, err
	}
	e, _, err := listfile.Parse(name, bytes.NewReader(v.text), listfile.Options{})
	if err == nil && len(e.V6)+len(e.Flows) > 0 {
		err = fmt.Errorf("%s: not of IPv4 prefixes alone", name)
	}
	for _, p := range e.V4 {
		if p.Bits() < shortest {
			return nil, fmt.Errorf("%s: %v is wider than the test reckons with", name, p.Prefix())
		}
		v.has[p], v.lengths[p.Bits()] = true, true
	}
	v.entries = e.V4
	return v, err
}

// sample returns up to n wanted addresses of a version, spread over it.
func (v *version) sample(n int, want func(netip.Addr) bool) (found []netip.Addr) {
	step := max(1, len(v.entries)/(4*n))
	for offset := range step {
		for i := offset; i < len(v.entries); i += step {
			if a := v.entries[i].Prefix().Addr(); want(a) {
				if found = append(found, a); len(found) == n {
					return found
				}
			}
		}
	}
	return found
}

// publish returns the configuration of a source and a function that publishes
// text there.
var publish = map[string]func(t *testing.T, h *host) (source string, put func([]byte)){
	"file": func(_ *testing.T, h *host) (string, func([]byte)) {
		return "file: " + h.path("feed.txt"), func(text []byte) { h.write("feed.txt", text) }
	},
	"http": func(t *testing.T, _ *host) (string, func([]byte)) {
		var now atomic.Pointer[[]byte]
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			text := *now.Load()
			tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(text)))
			w.Header().Set("ETag", tag)
			if q.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.Write(text)
		}))
		t.Cleanup(s.Close)
		return "url: " + s.URL, func(text []byte) { now.Store(&text) }
	},
}

// The real histories of lists, version by version, forth and back: entries of
// all versions are blocked all the time, addresses in none pass all the time,
// and changes take effect with the refresh.
func TestHistories(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	for _, c := range []struct {
		name, source string
		feeds        []string
		updates      int
	}{
		{"every two hours", "file", []string{"churn-data-shield-2h.tar.zst"}, long.Or(6, 12)},
		{"every two weeks", "http", []string{"churn-x4b-vpn-2026.tar.zst"}, long.Or(5, 12)},
		// So different that the next generation is built.
		{"another list", "file", []string{"ipsum.txt.gz", "malicious-ip-full.txt.gz"}, long.Or(2, 3)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			versions := history(t, c.updates+1, c.feeds...)
			in := func(a netip.Addr) (n int) {
				for _, v := range versions {
					if v.covers(a) {
						n++
					}
				}
				return n
			}
			const flooding, probed = 1000, 50
			first := versions[0]
			always := func(a netip.Addr) bool { return in(a) == len(versions) }
			// Half of them by another entry now and then, where there are such ones.
			moved := first.sample(flooding/2, func(a netip.Addr) bool {
				return always(a) && slices.ContainsFunc(versions, func(v *version) bool { return v.entry(a) != first.entry(a) })
			})
			listed := froms(append(moved, first.sample(flooding-len(moved), always)...)...)
			// Neighbours of listed ones, which the first stages of the filter let on.
			var clean []key.Tuple
			for _, a := range first.sample(flooding, func(a netip.Addr) bool { return in(a.Next()) == 0 }) {
				clean = append(clean, from(a.Next()))
			}
			if len(listed) < flooding || len(clean) < flooding/10 {
				t.Fatalf("%d sources in all versions, %d in none", len(listed), len(clean))
			}
			t.Logf("%d sources in all versions, %d of them moved; %d in none", len(listed), len(moved), len(clean))

			h := newHost(t)
			source, put := publish[c.source](t, h)
			put(first.text)
			h.configure(h.B.Iface, "lists: {churn: {sources: [{%s}], interval: 24h, max_shrink: 100%%}}\n", source)
			load := startTraffic(t, h.Lab, listed, clean)
			d := h.start(releases[0])
			load.run()
			h.settled("churn")
			before, next := first, versions[1:]
			for range c.updates {
				v := next[0]
				if next = next[1:]; len(next) == 0 { // the whole way back
					slices.Reverse(versions)
					next = versions[1:]
				}
				added := froms(v.sample(probed, func(a netip.Addr) bool { return !before.covers(a) })...)
				removed := froms(before.sample(probed, func(a netip.Addr) bool { return !v.covers(a) })...)
				load.await(1000)
				load.expect(v.name+" is to come, what it adds", true, added...)
				load.expect(v.name+" is to come, what it removes", false, removed...)
				put(v.text)
				h.refresh("churn", len(v.entries))
				load.expect(v.name+" has come, what it adds", false, added...)
				load.expect(v.name+" has come, what it removes", true, removed...)
				// A busy daemon describes its lists as they were a second ago.
				for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
					l := h.list("churn")
					if l.Entries == len(v.has) {
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("%s: %d entries are reported, want %d", v.name, l.Entries, len(v.has))
						break
					}
				}
				before = v
			}
			load.finish()
			d.complain("feed failed") // a file that was replaced while the watcher read it: it is read again
		})
	}
}

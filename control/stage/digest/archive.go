package digest

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/control/durable"
	"weir/filter/blocked"
	"weir/filter/compress"
	"weir/filter/digest"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/loader/netif"
)

// ArchiveConfig describes an archive on disk.
type ArchiveConfig struct {
	Dir  string        // "": no archive
	Keep time.Duration // time to keep slices
	Size int64         // bytes, above which the oldest slices are removed early
}

// Archive stores slices on disk, one file each, compressed to the entropy of
// their bits: a slice that is half as full as planned takes two thirds. A file
// is written completely or not at all. As it contains the secret seed, only its
// owner may read it. Slices are written in the background; if too many are
// waiting, further ones are dropped.
type Archive struct {
	log     *slog.Logger
	queue   chan archived
	done    chan struct{}
	dir     string
	reading chan struct{} // a semaphore: full while slices are read

	mu     sync.Mutex // guards the fields below
	config ArchiveConfig
	files  []file // in order of time
	counts ArchiveCounts
	// The last logged errors of writing, of removing, and of falling behind.
	unsaved, untidy, late string
}

// ArchiveCounts are an archive's counters.
type ArchiveCounts struct {
	Files  int
	Bytes  int64
	Errors uint64 // slices that could not be written
}

// archived is a slice of an interface.
type archived struct {
	netif.Target
	*digest.Slice
}

// file is a file of the archive.
type file struct {
	netif.Target
	from, to time.Time
	size     int64
	name     string
	damaged  bool // and logged
}

const (
	suffix = ".digests"

	// Slices waiting to be written. Those of all interfaces end at once.
	backlog = 1024
)

// leftOver reports whether a file was left over by a process that was killed while it
// wrote a slice.
func leftOver(name string) bool {
	return strings.HasSuffix(name, suffix+".new")
}

// OpenArchive opens the archive in a directory, which is created if needed.
// Other files in it are left alone.
func OpenArchive(c ArchiveConfig, log *slog.Logger) (*Archive, error) {
	if err := durable.MkdirAll(c.Dir); err != nil {
		return nil, fmt.Errorf("archive of digests: %w", err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("archive of digests: %w", err)
	}
	a := &Archive{config: c, dir: c.Dir, log: log, queue: make(chan archived, backlog), done: make(chan struct{}), reading: make(chan struct{}, 1)}
	for _, e := range entries {
		if leftOver(e.Name()) {
			_ = os.Remove(filepath.Join(c.Dir, e.Name()))
			continue
		}
		f, ok := parseName(e.Name())
		info, err := e.Info()
		if !ok || err != nil {
			continue
		}
		f.size = info.Size()
		a.add(f)
	}
	go a.write()
	return a, nil
}

// nameOf returns the name of a slice's file: its begin and end, in nanoseconds
// since 1970, and the interface.
func nameOf(s archived) string {
	return fmt.Sprintf("%d-%d-%s%s", s.From.UnixNano(), s.To.UnixNano(), url.QueryEscape(s.Netns+"/"+s.Iface), suffix)
}

// parseName is the inverse of nameOf.
func parseName(name string) (f file, ok bool) {
	base, ok := strings.CutSuffix(name, suffix)
	parts := strings.SplitN(base, "-", 3)
	if !ok || len(parts) != 3 {
		return f, false
	}
	from, err1 := strconv.ParseInt(parts[0], 10, 64)
	to, err2 := strconv.ParseInt(parts[1], 10, 64)
	place, err3 := url.QueryUnescape(parts[2])
	if errors.Join(err1, err2, err3) != nil {
		return f, false
	}
	i := strings.LastIndexByte(place, '/')
	if i < 0 {
		return f, false
	}
	return file{netif.Target{Netns: place[:i], Iface: place[i+1:]}, time.Unix(0, from), time.Unix(0, to), 0, name, false}, true
}

// add adds a file to the index.
func (a *Archive) add(f file) {
	i, _ := slices.BinarySearchFunc(a.files, f, func(x, y file) int {
		return cmp.Or(x.from.Compare(y.from), strings.Compare(x.name, y.name))
	})
	a.files = slices.Insert(a.files, i, f)
	a.counts.Bytes += f.size
}

// limit sets the limits of age and size.
func (a *Archive) limit(c ArchiveConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config = c
}

// put queues a slice for writing. It must no longer change.
func (a *Archive) put(t netif.Target, s *digest.Slice) {
	select {
	case a.queue <- archived{t, s}:
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.counts.Errors++
		a.report(&a.late, errors.New("slices arrive faster than they can be compressed and written, some are dropped"))
	}
}

// write writes queued slices until Close.
func (a *Archive) write() {
	defer close(a.done)
	for s := range a.queue {
		a.ended(a.save(s))
		a.tidy(time.Now())
	}
}

// ended records the result of writing a slice.
func (a *Archive) ended(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.counts.Errors++
	}
	a.report(&a.unsaved, err)
	if len(a.queue) == 0 {
		a.late = "" // it has caught up
	}
}

// report logs an error, unless it is the last one logged, whatever file it
// concerns; nil clears it.
func (a *Archive) report(last *string, err error) {
	text := fault(err)
	if text != "" && text != *last {
		a.log.Error("archive of digests: "+err.Error(), "directory", a.dir)
	}
	*last = text
}

// fault returns an error's text without the file name, "" for nil.
func fault(err error) string {
	var file *fs.PathError
	var files *os.LinkError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &file):
		return file.Op + ": " + file.Err.Error()
	case errors.As(err, &files):
		return files.Op + ": " + files.Err.Error()
	}
	return err.Error()
}

// save writes a slice to its file atomically, even in a crash.
func (a *Archive) save(s archived) error {
	text := encode(s.Slice)
	path := filepath.Join(a.dir, nameOf(s))
	if err := durable.WriteFile(path, text); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(file{s.Target, s.From, s.To, int64(len(text)), filepath.Base(path), false})
	return nil
}

// mostAged bounds the slices that are removed because of their age for each one that is written:
// where the clock is ahead, all seem too old. More than one are, so that the archive catches up.
const mostAged = 2

// mostAhead bounds how far the time of a slice may be ahead of the clock. Slices beyond that were
// recorded while the clock was wrong, or it is wrong now: where there is no room, they are removed
// first, the last before the others.
const mostAhead = time.Hour

// tidy removes slices beyond the limits of age and size.
func (a *Archive) tidy(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for aged := 0; len(a.files) > 0; {
		f, rest := a.files[0], a.files[1:]
		if last := len(a.files) - 1; a.counts.Bytes > a.config.Size && a.files[last].from.After(now.Add(mostAhead)) {
			f, rest = a.files[last], a.files[:last]
		}
		if a.counts.Bytes <= a.config.Size {
			if !f.to.Before(now.Add(-a.config.Keep)) || aged == mostAged {
				return
			}
			aged++
		}
		err := os.Remove(filepath.Join(a.dir, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // already gone
		}
		if a.report(&a.untidy, err); err != nil {
			return
		}
		a.files, a.counts.Bytes = rest, a.counts.Bytes-f.size
	}
}

// The limit of one query: about 25 s on one core. The file of a sparse slice is
// small, but takes almost as much work.
const (
	mostRead   = 128 << 20 // bytes of files
	leastSlice = 16 << 10  // minimum that a file counts
)

// ErrTooMuch means that a query would read too much of an archive.
var ErrTooMuch = errors.New("too much of the archive at once")

// slices reads the wanted slices, one at a time, and for one caller at a time.
// Damaged slices are logged once and skipped; slices that were removed
// meanwhile are skipped. It fails with ErrTooMuch, when ctx is done, or if a
// file cannot be read.
func (a *Archive) slices(ctx context.Context, wanted func(file) bool) iter.Seq2[archived, error] {
	a.mu.Lock()
	files := slices.Clone(a.files)
	a.mu.Unlock()
	files = slices.DeleteFunc(files, func(f file) bool { return !wanted(f) || f.damaged })
	var work int64
	for _, f := range files {
		work += max(f.size, leastSlice)
	}
	return func(yield func(archived, error) bool) {
		if work > mostRead {
			yield(archived{}, fmt.Errorf("%w: %d slices on disk match, %.1f times the limit: "+
				"ask for a shorter window, or for fewer packets", ErrTooMuch, len(files), float64(work)/mostRead))
			return
		}
		if len(files) == 0 {
			return // without waiting
		}
		select {
		case a.reading <- struct{}{}:
			defer func() { <-a.reading }()
		case <-ctx.Done():
		}
		for _, f := range files {
			if ctx.Err() != nil {
				yield(archived{}, context.Cause(ctx))
				return
			}
			path := filepath.Join(a.dir, f.name)
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				yield(archived{}, fmt.Errorf("archive of digests: %w", err))
				return
			}
			s, err := decode(text)
			if err != nil {
				a.spoil(f.name, fmt.Sprintf("archive of digests: %s: %v: remove it", path, err))
				continue
			}
			if !yield(archived{f.Target, s}, nil) {
				return
			}
		}
	}
}

// spoil marks a file as damaged, and logs why.
func (a *Archive) spoil(name, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.files, func(f file) bool { return f.name == name })
	if i < 0 || a.files[i].damaged {
		return
	}
	a.files[i].damaged = true
	a.log.Error(why)
}

// Counts returns the archive's counters.
func (a *Archive) Counts() ArchiveCounts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counts
	c.Files = len(a.files)
	return c
}

// Close waits until all queued slices are written.
func (a *Archive) Close() error {
	close(a.queue)
	<-a.done
	return nil
}

// The encoding of a slice, in little-endian order:
//
//	 0  magic "WDGS"
//	 4  version, 3: version 1 had another hash, and 2 covered checksums
//	 5  zero, 3 bytes
//	 8  seed, 32 bytes
//	40  begin and end, 8 bytes each, in nanoseconds since 1970
//	56  packets, 8 bytes
//	64  lines, and bits of a digest, 4 bytes each
//	72  the filter's bits, as encoded by weir/filter/compress
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery.
const (
	prefix      = "WDGS" + string(rune(digest.Version)) + "\x00\x00\x00"
	headerLen   = 72
	checksumLen = 8
)

func encode(s *digest.Slice) []byte {
	b := append([]byte(prefix), s.Seed[:]...)
	for _, n := range [...]uint64{uint64(s.From.UnixNano()), uint64(s.To.UnixNano()), s.Packets} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint32(b, s.Filter.Lines)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.Filter.Bits))
	b = compress.AppendBits(b, s.Filter.Words(), s.Filter.Lines*fpr.LineBits)
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
}

// decode is the inverse of encode. It fails on anything that encode does not
// produce.
func decode(b []byte) (*digest.Slice, error) {
	const magic = 4 // bytes
	if len(b) < headerLen+checksumLen || string(b[:magic]) != prefix[:magic] {
		return nil, errors.New("not a slice of digests")
	}
	if string(b[:len(prefix)]) != prefix {
		return nil, errors.New("another version of weir has written it")
	}
	body := b[:len(b)-checksumLen]
	if hash.Sum(0, body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return nil, errors.New("the checksum is wrong")
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	g := blocked.Geometry{Lines: binary.LittleEndian.Uint32(b[64:]), Bits: int(binary.LittleEndian.Uint32(b[68:]))}
	if g.Lines < 1 || g.Lines > blocked.MaxLines {
		return nil, fmt.Errorf("%d lines", g.Lines)
	}
	words, err := compress.DecodeBits(body[headerLen:], g.Lines*fpr.LineBits)
	if err != nil {
		return nil, err
	}
	f, err := blocked.FromWords(g, words)
	if err != nil {
		return nil, err
	}
	return &digest.Slice{
		Seed: hash.Seed(b[8:40]), From: time.Unix(0, int64(word(40))), To: time.Unix(0, int64(word(48))), Packets: word(56), Filter: f,
	}, nil
}

package digests

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

	"weir/filter/compress"
	"weir/filter/digest"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/loader"
)

// ArchiveConfig says which slices are on disk.
type ArchiveConfig struct {
	Dir  string        // "": there is no archive
	Keep time.Duration // how long
	Size int64         // bytes, above which the oldest go before their time
}

// Archive keeps slices on disk, a file each, compressed to the entropy of their
// bits: a slice that is half as full as planned takes two thirds. A file is there
// whole, or not at all. Since it holds the secret seed, only its owner may read it.
// Slices are written in the background; those that come while too many wait are
// left out.
type Archive struct {
	log     *slog.Logger
	queue   chan archived
	done    chan struct{}
	dir     string
	reading chan struct{} // has an element while slices are read

	mu     sync.Mutex // guards what follows
	config ArchiveConfig
	files  []file // in order of time
	counts ArchiveCounts
	// What is wrong, as the log has it: with the last slice, with what is to go, and with
	// the time that writing takes.
	unsaved, untidy, late string
}

// ArchiveCounts is what an archive has come to.
type ArchiveCounts struct {
	Files  int
	Bytes  int64
	Errors uint64 // slices that could not be written
}

// archived is a slice of an interface.
type archived struct {
	loader.Target
	*digest.Slice
}

// file is one in the archive.
type file struct {
	loader.Target
	from, to time.Time
	size     int64
	name     string
	damaged  bool // it is in the log
}

const (
	suffix    = ".digests"
	temporary = ".tmp"
	backlog   = 16 // slices that wait to be written
)

// OpenArchive opens the archive in a directory, which is made if need be. Files
// that are no slices are left alone.
func OpenArchive(c ArchiveConfig, log *slog.Logger) (*Archive, error) {
	const owner = 0o700
	if err := os.MkdirAll(c.Dir, owner); err != nil {
		return nil, fmt.Errorf("archive of digests: %w", err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("archive of digests: %w", err)
	}
	a := &Archive{config: c, dir: c.Dir, log: log, queue: make(chan archived, backlog), done: make(chan struct{}), reading: make(chan struct{}, 1)}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix+temporary) { // of a weir that was killed
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

// nameOf is a slice's file: when it begins and ends, in nanoseconds since 1970, and
// the interface.
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
	return file{loader.Target{Netns: place[:i], Iface: place[i+1:]}, time.Unix(0, from), time.Unix(0, to), 0, name, false}, true
}

// add takes a file up.
func (a *Archive) add(f file) {
	i, _ := slices.BinarySearchFunc(a.files, f, func(x, y file) int {
		return cmp.Or(x.from.Compare(y.from), strings.Compare(x.name, y.name))
	})
	a.files = slices.Insert(a.files, i, f)
	a.counts.Bytes += f.size
}

// limit sets how long slices are kept, and how much of them.
func (a *Archive) limit(c ArchiveConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config = c
}

// put has a slice written, which must not change any more.
func (a *Archive) put(t loader.Target, s *digest.Slice) {
	select {
	case a.queue <- archived{t, s}:
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.counts.Errors++
		a.tell(&a.late, errors.New("slices come faster than they can be compressed and written: some are left out"))
	}
}

// write writes what comes, until Close.
func (a *Archive) write() {
	defer close(a.done)
	for s := range a.queue {
		a.ended(a.save(s))
		a.tidy(time.Now())
	}
}

// ended takes in what came of a slice.
func (a *Archive) ended(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.counts.Errors++
	}
	a.tell(&a.unsaved, err)
	if len(a.queue) == 0 {
		a.late = "" // it has caught up
	}
}

// tell logs what is wrong, unless it is what the log has last, of whatever file; nil is
// that it is over.
func (a *Archive) tell(last *string, err error) {
	text := fault(err)
	if text != "" && text != *last {
		a.log.Error("archive of digests: "+err.Error(), "directory", a.dir)
	}
	*last = text
}

// fault is an error without the file that it is about, "" for none.
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

// save writes a slice to its file. After a crash at any instant it is there, or it
// is not.
func (a *Archive) save(s archived) error {
	text := encode(s.Slice)
	path := filepath.Join(a.dir, nameOf(s))
	if err := writeFile(path+temporary, text); err != nil {
		_ = os.Remove(path + temporary) // it is of no use, and may fill a disk
		return err
	}
	if err := errors.Join(os.Rename(path+temporary, path), syncDirectory(a.dir)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(file{s.Target, s.From, s.To, int64(len(text)), filepath.Base(path), false})
	return nil
}

func writeFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// tidy removes what is too old, or too much.
func (a *Archive) tidy(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.files) > 0 {
		f := a.files[0]
		if !f.to.Before(now.Add(-a.config.Keep)) && a.counts.Bytes <= a.config.Size {
			return
		}
		err := os.Remove(filepath.Join(a.dir, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it is what was wanted
		}
		if a.tell(&a.untidy, err); err != nil {
			return
		}
		a.files, a.counts.Bytes = a.files[1:], a.counts.Bytes-f.size
	}
}

// What is read of an archive for one question: some 25 s of a core. Of a slice in which
// few packets passed, the file is small, but not the work.
const (
	mostRead   = 128 << 20 // bytes of files
	leastSlice = 16 << 10  // that a file counts as
)

// ErrTooMuch says that a question would take too much of an archive.
var ErrTooMuch = errors.New("too much of the archive at once")

// slices reads the slices that are wanted, one at a time, and for one caller at a time. One
// that is damaged is in the log, once, and left out; one that was removed meanwhile is
// none. It fails with ErrTooMuch, or when ctx is done, or where a file cannot be read.
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
			yield(archived{}, fmt.Errorf("%w: the packets are looked for in %d slices on disk, which is %.1f times the most: "+
				"ask for a shorter window, or for fewer packets", ErrTooMuch, len(files), float64(work)/mostRead))
			return
		}
		if len(files) == 0 {
			return // and waits for nobody
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

// spoil notes that a file is damaged, and logs why.
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

// Counts tells of the archive.
func (a *Archive) Counts() ArchiveCounts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counts
	c.Files = len(a.files)
	return c
}

// Close waits until all that was put is written.
func (a *Archive) Close() error {
	close(a.queue)
	<-a.done
	return nil
}

// The encoding of a slice, in little-endian order:
//
//	 0  magic "WDGS"
//	 4  version, 1
//	 5  zero, 3 bytes
//	 8  seed, 8 bytes
//	16  begin and end, 8 bytes each, in nanoseconds since 1970
//	32  packets, 8 bytes
//	40  lines, and bits of a digest, 4 bytes each
//	48  the filter's bits, as encoded by weir/filter/compress
//	    XXH64 of all that precedes under seed 0, 8 bytes
//
// The checksum finds damage, not forgery.
const (
	prefix      = "WDGS\x01\x00\x00\x00"
	headerLen   = 48
	checksumLen = 8
)

func encode(s *digest.Slice) []byte {
	b := []byte(prefix)
	for _, n := range [...]uint64{s.Seed, uint64(s.From.UnixNano()), uint64(s.To.UnixNano()), s.Packets} {
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
	if len(b) < headerLen+checksumLen || string(b[:len(prefix)]) != prefix {
		return nil, errors.New("no slice of digests")
	}
	body := b[:len(b)-checksumLen]
	if hash.Sum(0, body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return nil, errors.New("the checksum is wrong")
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	g := digest.Geometry{Lines: binary.LittleEndian.Uint32(b[40:]), Bits: int(binary.LittleEndian.Uint32(b[44:]))}
	if g.Lines < 1 || g.Lines > digest.MaxLines {
		return nil, fmt.Errorf("%d lines", g.Lines)
	}
	words, err := compress.DecodeBits(body[headerLen:], g.Lines*fpr.LineBits)
	if err != nil {
		return nil, err
	}
	f, err := digest.FromWords(g, words)
	if err != nil {
		return nil, err
	}
	return &digest.Slice{
		Seed: word(8), From: time.Unix(0, int64(word(16))), To: time.Unix(0, int64(word(24))), Packets: word(32), Filter: f,
	}, nil
}

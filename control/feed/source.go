package feed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/endpoint"
	"weir/control/list/listfile"
	"weir/control/quantity"
	"weir/filter/key"
)

// Defaults of a Source.
const (
	// DefaultMaxBytes suffices for 18 million addresses at 15 bytes per line.
	DefaultMaxBytes = 256 << 20

	// DefaultTimeout suffices for DefaultMaxBytes at 1 MB/s.
	DefaultTimeout = 5 * time.Minute

	// DefaultMaxCPU suffices for 20 million addresses, one a line, and for some
	// millions in JSON, on a processor that reads 4 million addresses a second: a slow
	// or busy one may need several times as much.
	DefaultMaxCPU = 5 * time.Second

	// maxURLLines bounds the lines of a source from a URL, most of which may be blank
	// or comments: two and a half for each of the entries that it may have.
	maxURLLines = 50_000_000

	// DefaultConnectTimeout tolerates the loss of a TCP handshake's first two
	// packets.
	DefaultConnectTimeout = 10 * time.Second

	// DefaultStallTimeout tolerates packet loss for longer than TCP needs to
	// double its retransmission timer four times.
	DefaultStallTimeout = 30 * time.Second
)

// Source is a source of entries: exactly one of a file, a directory and a URL.
type Source struct {
	// Path of a file.
	File Path `yaml:"file,omitempty"`

	// Path of a directory. All regular files in it are read, sorted by name, except
	// those whose names begin with a dot.
	Directory Path `yaml:"directory,omitempty"`

	// For a directory, the suffixes of names of files to read, as in .txt. Default:
	// all.
	Suffixes []string `yaml:"suffixes,omitempty"`

	// HTTP or HTTPS. For crowdsec the URL of its API, without the path; for taxii that of a
	// collection, as in https://HOST/api/collections/ID/.
	URL URL `yaml:"url,omitempty"`

	// Sent to the URL's own host, as in X-Api-Key for crowdsec.
	Headers map[string]string `yaml:"headers,omitempty"`

	// Certificates for a URL of HTTPS, in PEM.
	TLS TLS `yaml:"tls,omitempty"`

	// How long a fetch may take.
	Timeout quantity.Duration `yaml:"timeout"`

	// The maximum size of a source, both as served and decompressed.
	MaxBytes quantity.Size `yaml:"max_bytes"`

	// The maximum number of entries, counting duplicates but for equal lines in a row
	// and equal ranges, the prefixes that a range becomes, and a flow as four. Default: one for every 256 bytes of the memory of the
	// host or control group, for crowdsec a fifth of that; for a url at most 20 million.
	MaxEntries quantity.Count `yaml:"max_entries,omitempty" min:"0" max:"1000000000"`

	// For a url, the processor time that reading it may take: its server cannot
	// keep the host busy. A source that has failed rests in proportion to what it took.
	MaxCPU quantity.Duration `yaml:"max_cpu"`

	// The SHA-256 that the contents as served must have, in hexadecimal.
	SHA256 SHA256 `yaml:"sha256,omitempty"`

	// URL of the output of sha256sum, for one file or for several, of which the one
	// with the name of the URL's last element counts.
	SHA256URL URL `yaml:"sha256_url,omitempty"`

	// URL of an Ed25519 signature by public_key: the bare 64 bytes, in base64 or not,
	// or what signify or "minisign -S -l" writes. Where minisign's trusted comment has a
	// timestamp, contents that were signed before the last ones are refused.
	SignatureURL URL `yaml:"signature_url,omitempty"`

	// Ed25519 key in base64: bare, or the second line of a .pub file of minisign or
	// signify.
	PublicKey string `yaml:"public_key,omitempty"`

	written []string // the entries of a Spec, instead of a file, a directory or a URL

	ConnectTimeout time.Duration `yaml:"-"` // of the TCP connection, and again of TLS; 0: DefaultConnectTimeout
	StallTimeout   time.Duration `yaml:"-"` // between two pieces of the answer; 0: DefaultStallTimeout
}

// SetDefaults sets the limits to their defaults.
func (s *Source) SetDefaults() {
	s.Timeout, s.MaxBytes, s.MaxCPU = quantity.Duration(DefaultTimeout), DefaultMaxBytes, quantity.Duration(DefaultMaxCPU)
}

// Label returns the text of String.
func (s Source) Label() string { return s.String() }

// String returns the source's name, without the possibly secret parts of a URL:
// user, password and query.
func (s Source) String() string {
	if s.written != nil {
		return "the configuration"
	}
	if s.URL == "" {
		return string(s.File + s.Directory) // one of them is empty
	}
	return s.URL.Redacted()
}

// id identifies a source's saved contents. It differs for the same place with
// other requirements, such as a signature.
func (s Source) id() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{
		string(s.File), string(s.Directory), string(s.URL), string(s.SHA256URL), string(s.SignatureURL), s.PublicKey,
	}))
	return hex.EncodeToString(sum[:8])
}

// validate returns what is wrong with a source whose contents are of a kind.
func (s Source) validate(kind Kind) error {
	places := 0
	for _, place := range []string{string(s.File), string(s.Directory), string(s.URL)} {
		if place != "" {
			places++
		}
	}
	if places != 1 {
		return errors.New("want one of file, directory and URL")
	}
	if s.URL == "" && (kind.row().api || s.SHA256URL != "" || s.SignatureURL != "" || len(s.Headers) > 0) {
		return errors.New("headers, CrowdSec, TAXII, and checksums and signatures from a URL require a URL")
	}
	if err := endpoint.ValidateHeaders(s.Headers); err != nil {
		return err
	}
	if kind.row().made && (s.SHA256 != "" || s.SHA256URL != "" || s.SignatureURL != "") {
		return fmt.Errorf("%v have no checksum or signature: their addresses change", kind)
	}
	switch {
	case s.TLS == TLS{}:
	case s.URL == "":
		return errors.New("certificates (tls) require a URL")
	case !strings.HasPrefix(string(s.URL), "https:"):
		return errors.New("tls: want a URL that begins with https://")
	case (s.TLS.Cert == "") != (s.TLS.Key == ""):
		return errors.New("tls: want cert and key, or neither")
	}
	for _, u := range []URL{s.URL, s.SHA256URL, s.SignatureURL} {
		if err := u.check(); u != "" && err != nil {
			return err
		}
	}
	if s.Directory == "" && len(s.Suffixes) > 0 {
		return errors.New("suffixes require a directory")
	}
	if err := s.validateLimits(); err != nil {
		return err
	}
	return s.validateProofs(kind)
}

// validateLimits returns what is wrong with the bounds of a fetch.
func (s Source) validateLimits() error {
	switch {
	case s.MaxBytes < 0 || s.MaxEntries < 0 || s.Timeout < 0 || s.MaxCPU < 0 || min(s.ConnectTimeout, s.StallTimeout) < 0:
		return errors.New("negative limit")
	case s.MaxBytes == 0 || s.Timeout == 0:
		return errors.New("max_bytes or timeout is 0: nothing could be read")
	case s.MaxCPU == 0:
		return errors.New("max_cpu is 0: nothing could be read")
	}
	return nil
}

// validateProofs returns what is wrong with what the contents must prove.
func (s Source) validateProofs(kind Kind) error {
	if s.proofs() != "" && (s.Directory != "" || kind == CrowdSec) {
		return errors.New("directories and CrowdSec cannot have a checksum or a signature")
	}
	if s.SHA256 != "" {
		if !isSHA256(string(s.SHA256)) {
			return fmt.Errorf("SHA-256 %q: want 64 hexadecimal digits", s.SHA256)
		}
		if s.SHA256URL != "" {
			return errors.New("want either a SHA-256 or its URL")
		}
	}
	if (s.SignatureURL != "") != (s.PublicKey != "") {
		return errors.New("a signature's URL and a public key go together")
	}
	if s.PublicKey != "" {
		if _, err := parsePublicKey(s.PublicKey); err != nil {
			return err
		}
	}
	return nil
}

// maxCPU returns the processor time that reading the source may take, 0 for no limit: a
// file is the operator's own.
func (s Source) maxCPU() time.Duration {
	if s.URL == "" {
		return 0
	}
	return time.Duration(s.MaxCPU)
}

// proofs is not empty if a checksum or signature is required.
func (s Source) proofs() string { return string(s.SHA256) + string(s.SHA256URL+s.SignatureURL) }

// errUnchanged means that a source has not changed since its validator was
// made.
var errUnchanged = errors.New("unchanged")

// validator makes a request conditional. For files, the entity tag is made of
// file system metadata.
type validator struct {
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
}

// body is a source's contents, ready to be read.
type body struct {
	parts []part
	validator
	whole func() error // unless nil, an error if the contents were incomplete
	end   *ending      // of contents whose length is not known; nil: it is
	taken func()       // unless nil, called when the contents become active

	decisions  decisions            // CrowdSec's, of which it consists
	unreadable listfile.Report      // of decisions, those that are not
	resolved   map[string]*resolved // of names, of which it consists

	invalid map[key.Key]struct{} // of indicators in files, active entries that are not valid now

	html  bool // it is served as HTML
	plain bool // it is in the format of lists, whatever the source's
	known bool // it was accepted before: only its whole is judged

	missing bool // there was no file to make it from
	names   int  // of names, how many there are, with other entries beside them

	// stated reports that the source itself lists removals: then few or no
	// entries do not indicate a failure.
	stated bool
}

// part is a file of a source.
type part struct {
	name string // for reports
	open func() (io.ReadCloser, error)
}

// files opens a file or a directory, unless it is unchanged. A stream, such as a
// shell's <(…), can be read only once and is unchanged after that.
func (s Source) files(ctx context.Context, known validator, read bool) (*body, error) {
	if s.written != nil {
		text := strings.Join(s.written, "\n") + "\n"
		open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
		return &body{parts: []part{{s.String(), open}}}, nil
	}
	if isStream(string(s.File)) {
		if read {
			return nil, errUnchanged
		}
		return s.pipe(ctx), nil
	}
	paths, tag, err := s.list()
	if err != nil {
		return nil, fail(Unreachable, "%w", err)
	}
	if tag != "" && tag == known.ETag {
		return nil, errUnchanged
	}
	b := &body{}
	b.ETag = tag
	for _, path := range paths {
		b.parts = append(b.parts, part{path, func() (io.ReadCloser, error) {
			f, err := os.Open(path)
			if err != nil {
				return nil, fail(Unreachable, "%w", err)
			}
			return file{f}, nil
		}})
	}
	b.whole = func() error {
		if err := settled(ctx, paths); err != nil {
			return err
		}
		if _, now, err := s.list(); err != nil || now != tag {
			return fail(Truncated, "changed while being read: write to another name, then rename")
		}
		// A second write within one tick of the file system's clock would not
		// change the tag.
		if slices.ContainsFunc(paths, mayHide) {
			b.ETag = ""
		}
		return nil
	}
	return b, nil
}

// settled fails if one of some files, which were read, may be part of a copy that goes on: it is open
// for writing, and was written to just now, or its last line has no end. It waits for more after a last line without an
// end that was written just now.
func settled(ctx context.Context, paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			continue // list finds out
		}
		last := []byte{'\n'}
		st, err := f.Stat()
		if err == nil {
			_, _ = f.ReadAt(last, st.Size()-1) // nothing, of an empty file
		}
		f.Close()
		if err != nil {
			continue
		}
		since, unended := max(time.Since(st.ModTime()), 0), !slices.Contains([]byte("\n}]"), last[0])
		switch {
		case (since < settle || unended && since < maxWriting) && isWritten(path):
			return fail(Truncated, "%s is being written: write to another name, then rename", path)
		case unended && since < settle:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(settle - since):
			}
		}
	}
	return nil
}

// isStream reports whether a path is a pipe, or standard input and no regular
// file.
func isStream(path string) bool {
	if path == "" {
		return false
	}
	st, err := os.Stat(path)
	return err == nil && (st.Mode()&os.ModeNamedPipe != 0 || path == os.Stdin.Name() && !st.Mode().IsRegular())
}

// pipe opens a stream, and fails if no data arrives in time, or ctx ends.
func (s Source) pipe(ctx context.Context) *body {
	open := func() (io.ReadCloser, error) {
		f, err := openStream(string(s.File))
		if err != nil {
			return nil, fail(Unreachable, "%w", err)
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Duration(s.Timeout))) // if the file supports deadlines
		context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })
		return file{f}, nil
	}
	return &body{parts: []part{{string(s.File), open}}}
}

func openStream(path string) (*os.File, error) {
	// Without a writer, a blocking open would wait forever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if path != os.Stdin.Name() || !errors.Is(err, syscall.ENXIO) {
		return f, err
	}
	// A socket, as ssh may have it, cannot be opened again.
	fd, err := syscall.Dup(syscall.Stdin)
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// file is an open file whose errors are of kind Unreachable.
type file struct{ *os.File }

func (f file) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if err != nil && err != io.EOF {
		err = fail(Unreachable, "%w", err)
	}
	return n, err
}

// list returns the paths of a source's files, and a tag that changes when any
// of them does.
func (s Source) list() (paths []string, tag string, err error) {
	candidates := []string{string(s.File)}
	if s.Directory != "" {
		entries, err := os.ReadDir(string(s.Directory))
		if err != nil {
			return nil, "", err
		}
		candidates = nil
		for _, e := range entries {
			if name := e.Name(); s.matches(name) {
				candidates = append(candidates, filepath.Join(string(s.Directory), name))
			}
		}
	}
	sum := sha256.New()
	for _, path := range candidates {
		st, err := os.Stat(path)
		if err != nil {
			return nil, "", err
		}
		if !st.Mode().IsRegular() {
			if s.File != "" {
				return nil, "", fmt.Errorf("%s is neither a regular file nor a pipe", path)
			}
			continue
		}
		paths = append(paths, path)
		at := st.Sys().(*syscall.Stat_t)
		fmt.Fprintf(sum, "%q %d %d %d %d %d\n", path, at.Dev, at.Ino, st.Size(), st.ModTime().UnixNano(), changeTime(st).UnixNano())
	}
	return paths, hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

func (s Source) matches(name string) bool {
	return !strings.HasPrefix(name, ".") &&
		(len(s.Suffixes) == 0 || slices.ContainsFunc(s.Suffixes, func(suffix string) bool {
			return strings.HasSuffix(name, suffix)
		}))
}

// Bounds of the time for which two writes to a file may have the same time: the kernel's clock
// for that ticks each 10 ms at the least, and of all file systems FAT has the coarsest one, of
// two seconds.
const (
	fineTick   = 100 * time.Millisecond
	coarseTick = 2 * time.Second
)

// fineClocks are the types of file systems, by statfs(2), on whose files this host's kernel
// writes its own clock as it is. Others may have a server's, or round it.
var fineClocks = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC}

// mayHide reports whether a file was changed so lately that another change may show neither in
// its times nor in its size.
func mayHide(path string) bool {
	st, err := os.Stat(path)
	if err != nil {
		return true
	}
	made := changeTime(st)
	tick := coarseTick
	var fs unix.Statfs_t
	// Whole hundredths of a second are a sign of a rounded clock, as of ext4 with small inodes.
	if made.Nanosecond()%1e7 != 0 && unix.Statfs(path, &fs) == nil && slices.Contains(fineClocks, fs.Type) {
		tick = fineTick
	}
	var now unix.Timespec // of the clock that files are stamped by
	return unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil || time.Unix(now.Unix()).Sub(made) < tick
}

// changeTime returns the time of the last change of a file or its inode: other than the time of
// modification, a program cannot set it back.
func changeTime(st os.FileInfo) time.Time {
	return time.Unix(st.Sys().(*syscall.Stat_t).Ctim.Unix())
}

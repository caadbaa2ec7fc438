package feed

import (
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

	"weir/control/quantity"
)

// What holds where a Source does not say otherwise.
const (
	// DefaultMaxBytes is room for 18 million addresses of 15 bytes a line.
	DefaultMaxBytes = 256 << 20

	// DefaultTimeout fits DefaultMaxBytes at 1 MB/s.
	DefaultTimeout = 5 * time.Minute

	// DefaultConnectTimeout lets a TCP handshake lose its first two packets.
	DefaultConnectTimeout = 10 * time.Second

	// DefaultStallTimeout lets a path lose packets for longer than TCP needs to
	// double its retransmission timer four times.
	DefaultStallTimeout = 30 * time.Second
)

// Source is where entries come from: a file, a directory or a URL, one of them.
type Source struct {
	// Path of a file.
	File Path `yaml:"file,omitempty"`

	// Path of a directory. All regular files in it are read, sorted by name, except
	// those whose names begin with a dot.
	Directory Path `yaml:"directory,omitempty"`

	// For a directory, the suffixes of names of files to read, as in .txt. Default:
	// all.
	Suffixes []string `yaml:"suffixes,omitempty"`

	// HTTP or HTTPS. For crowdsec the URL of its API, without the path.
	URL URL `yaml:"url,omitempty"`

	// Sent to the URL's own host, as in X-Api-Key for crowdsec.
	Headers map[string]string `yaml:"headers,omitempty"`

	// How long a fetch may take.
	Timeout quantity.Duration `yaml:"timeout"`

	// The maximum size of a source, both as served and decompressed.
	MaxBytes quantity.Size `yaml:"max_bytes"`

	// The SHA-256 that the contents as served must have, in hexadecimal.
	SHA256 SHA256 `yaml:"sha256,omitempty"`

	// URL of the output of sha256sum, for one file or for several, of which the one
	// with the name of the URL's last element counts.
	SHA256URL URL `yaml:"sha256_url,omitempty"`

	// URL of an Ed25519 signature by public_key: the bare 64 bytes, in base64 or not,
	// or what signify or "minisign -S -l" writes.
	SignatureURL URL `yaml:"signature_url,omitempty"`

	// Ed25519 key in base64: bare, or the second line of a .pub file of minisign or
	// signify.
	PublicKey string `yaml:"public_key,omitempty"`

	ConnectTimeout time.Duration `yaml:"-"` // of the TCP connection, and again of TLS; 0: DefaultConnectTimeout
	StallTimeout   time.Duration `yaml:"-"` // between two pieces of the answer; 0: DefaultStallTimeout
}

// SetDefaults sets the limits to their defaults.
func (s *Source) SetDefaults() {
	s.Timeout, s.MaxBytes = quantity.Duration(DefaultTimeout), DefaultMaxBytes
}

// Label returns the text of String.
func (s Source) Label() string { return s.String() }

// String names the source, without what may be secret in a URL: user, password
// and query.
func (s Source) String() string {
	if s.URL == "" {
		return string(s.File + s.Directory) // one of them is empty
	}
	return s.URL.Redacted()
}

// id tells a source's saved contents from those of others, such as the same
// place before its signatures were asked for.
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
	if s.URL == "" && (kind == CrowdSec || s.SHA256URL != "" || s.SignatureURL != "" || len(s.Headers) > 0) {
		return errors.New("headers, CrowdSec, and checksums and signatures from a URL go with a URL only")
	}
	for _, u := range []URL{s.URL, s.SHA256URL, s.SignatureURL} {
		if err := u.check(); u != "" && err != nil {
			return err
		}
	}
	if s.Directory == "" && len(s.Suffixes) > 0 {
		return errors.New("suffixes go with a directory only")
	}
	if s.proofs() != "" && (s.Directory != "" || kind == CrowdSec) {
		return errors.New("neither directories nor CrowdSec go with a checksum or a signature")
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
	switch {
	case s.MaxBytes < 0 || s.Timeout < 0 || min(s.ConnectTimeout, s.StallTimeout) < 0:
		return errors.New("negative limit")
	case s.MaxBytes == 0 || s.Timeout == 0:
		return errors.New("max_bytes or timeout is 0: nothing could be read")
	}
	return nil
}

// proofs is not empty if the bytes as served must be certain ones.
func (s Source) proofs() string { return string(s.SHA256) + string(s.SHA256URL+s.SignatureURL) }

// errUnchanged says that a source holds what it held when its validator was
// made.
var errUnchanged = errors.New("unchanged")

// validator tells a source what is known of it already. For files, the entity
// tag is made of what the file system says.
type validator struct {
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
}

// body is what a source holds, about to be read.
type body struct {
	parts []part
	validator
	whole func() error // unless nil, whether what was read then was whole
	taken func()       // unless nil, called when the contents are in force

	// stated says that the source itself states what has gone: then neither
	// few entries nor none are a sign of a failure.
	stated bool
}

// part is a file of a source.
type part struct {
	name string // for reports
	open func() (io.ReadCloser, error)
}

// files opens a file or a directory, unless it is as known says. A pipe, as of a
// shell's <(…), can be read once: when it has been, it is unchanged.
func (s Source) files(known validator, read bool) (*body, error) {
	if isPipe(string(s.File)) {
		if read {
			return nil, errUnchanged
		}
		return s.pipe(), nil
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
	began := tag
	b.whole = func() error {
		if _, tag, err := s.list(); err != nil || tag != began {
			return fail(Truncated, "was changed while it was read: write to another name, then rename")
		}
		// A second write within the file system's clock tick would leave the
		// tag as it is. Two seconds are the coarsest clock, that of FAT.
		if s.touched(paths, 2*time.Second) {
			b.ETag = ""
		}
		return nil
	}
	return b, nil
}

// isPipe reports whether a path is that of a pipe.
func isPipe(path string) bool {
	if path == "" {
		return false
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

// pipe opens a file that is a pipe, and gives up where nothing comes in time.
func (s Source) pipe() *body {
	open := func() (io.ReadCloser, error) {
		// Without a writer, a blocking open would wait forever.
		f, err := os.OpenFile(string(s.File), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, fail(Unreachable, "%w", err)
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Duration(s.Timeout))) // where the file has deadlines
		return file{f}, nil
	}
	return &body{parts: []part{{string(s.File), open}}}
}

// file is an open file whose errors tell that it could not be read.
type file struct{ *os.File }

func (f file) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if err != nil && err != io.EOF {
		err = fail(Unreachable, "%w", err)
	}
	return n, err
}

// list gives the paths of a source's files, and a tag that is another one when
// any of them has changed.
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
		fmt.Fprintf(sum, "%q %d %d %d\n", path, st.Sys().(*syscall.Stat_t).Ino, st.Size(), st.ModTime().UnixNano())
	}
	return paths, hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

func (s Source) matches(name string) bool {
	return !strings.HasPrefix(name, ".") &&
		(len(s.Suffixes) == 0 || slices.ContainsFunc(s.Suffixes, func(suffix string) bool {
			return strings.HasSuffix(name, suffix)
		}))
}

// touched reports whether any file was written to within the last d.
func (s Source) touched(paths []string, d time.Duration) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		st, err := os.Stat(path)
		return err != nil || time.Since(st.ModTime()) < d
	})
}

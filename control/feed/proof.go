package feed

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verify checks a source's contents against the required checksum and
// signature. text is needed for a signature only. It returns when they were signed,
// the zero time if the signature does not say.
func (s *source) verify(ctx context.Context, sum [sha256.Size]byte, text []byte) (signed time.Time, err error) {
	want := string(s.SHA256)
	if s.SHA256URL != "" {
		doc, err := s.small(ctx, "checksum", string(s.SHA256URL))
		if err != nil {
			return signed, err
		}
		u, err := url.Parse(string(s.URL))
		if err != nil {
			return signed, fail(BadChecksum, "malformed URL")
		}
		if want, err = findSHA256(string(doc), path.Base(u.Path)); err != nil {
			return signed, err
		}
	}
	if got := hex.EncodeToString(sum[:]); want != "" && !strings.EqualFold(got, want) {
		return signed, fail(BadChecksum, "SHA-256 is %s, want %s", got, want)
	}
	if s.SignatureURL == "" {
		return signed, nil
	}
	key, err := parsePublicKey(s.PublicKey)
	if err != nil {
		return signed, err
	}
	doc, err := s.small(ctx, "signature", string(s.SignatureURL))
	if err != nil {
		return signed, err
	}
	return key.verify(text, doc)
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// findSHA256 finds a file's checksum in the output of sha256sum, with or
// without --tag. A single checksum may have any name, or none.
func findSHA256(doc, name string) (string, error) {
	var sums []string
	for line := range strings.Lines(doc) {
		sum, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		called := strings.TrimLeft(rest, " *")
		if tagged, ok := strings.CutPrefix(strings.TrimSpace(line), "SHA256 ("); ok {
			called, sum, _ = strings.Cut(tagged, ") = ")
		}
		if !isSHA256(sum) {
			continue
		}
		if path.Base(called) == name {
			return sum, nil
		}
		sums = append(sums, sum)
	}
	if len(sums) == 1 {
		return sums[0], nil
	}
	return "", fail(BadChecksum, "%d SHA-256 sums in the checksum file, but none of %q", len(sums), name)
}

// publicKey is an Ed25519 key, with its minisign or signify number, if it has
// one.
type publicKey struct {
	ed25519.PublicKey
	number []byte
}

// Minisign and signify prefix keys and signatures with the algorithm and the
// key's number.
const (
	algorithmLen = 2
	numberLen    = 8
)

var (
	pure      = []byte("Ed") // signs the file itself
	prehashed = []byte("ED") // signs its BLAKE2b
)

func parsePublicKey(s string) (publicKey, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	switch {
	case err != nil:
	case len(b) == ed25519.PublicKeySize:
		return publicKey{PublicKey: b}, nil
	case len(b) == algorithmLen+numberLen+ed25519.PublicKeySize && bytes.HasPrefix(b, pure):
		return publicKey{b[algorithmLen+numberLen:], b[algorithmLen:][:numberLen]}, nil
	}
	return publicKey{}, fmt.Errorf("public key %q: want an Ed25519 key in base64, bare or of minisign or signify", s)
}

// verify checks a detached signature of text. It returns the time in the trusted
// comment of a signature of minisign, the zero time if there is none.
func (k publicKey) verify(text, signature []byte) (signed time.Time, err error) {
	var comment, second []byte
	if len(signature) != ed25519.SignatureSize { // otherwise it is bare
		line := bytes.TrimSpace(signature)
		if untrusted, rest, ok := bytes.Cut(line, []byte("\n")); ok && bytes.HasPrefix(untrusted, []byte("untrusted comment:")) {
			line, rest, _ = bytes.Cut(rest, []byte("\n"))
			comment, second, _ = bytes.Cut(rest, []byte("\n"))
		}
		b, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(line)))
		if err != nil {
			return signed, fail(BadSignature, "signature is neither %d bytes, nor base64, nor of minisign or signify", ed25519.SignatureSize)
		}
		if signature, err = k.unwrap(b); err != nil {
			return signed, err
		}
	}
	if !ed25519.Verify(k.PublicKey, text, signature) {
		return signed, fail(BadSignature, "signature does not match the contents and the key")
	}
	trusted, ok := bytes.CutPrefix(bytes.TrimRight(comment, "\r"), []byte("trusted comment: "))
	if !ok {
		return signed, nil
	}
	b, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(second)))
	if err != nil || !ed25519.Verify(k.PublicKey, slices.Concat(signature, trusted), b) {
		return signed, fail(BadSignature, "the signature of the trusted comment does not match")
	}
	for field := range bytes.FieldsSeq(trusted) {
		if text, ok := bytes.CutPrefix(field, []byte("timestamp:")); ok {
			if seconds, err := strconv.ParseInt(string(text), 10, 64); err == nil && seconds > 0 {
				return time.Unix(seconds, 0), nil
			}
		}
	}
	return signed, nil
}

// fresh refuses contents that were signed before those that were read last: who
// controls the server could otherwise bring back an old version.
func (c *contents) fresh(old *contents) error {
	switch {
	case old == nil || old.Signed.IsZero() || !c.Signed.Before(old.Signed):
		return nil
	case c.Signed.IsZero():
		return fail(BadSignature, "signed without a time, where the last version was signed at %s (refresh --accept accepts it)", old.Signed.UTC().Format(time.RFC3339))
	}
	return fail(BadSignature, "an older version, signed at %s, the last one at %s (refresh --accept accepts it)",
		c.Signed.UTC().Format(time.RFC3339), old.Signed.UTC().Format(time.RFC3339))
}

// unwrap extracts the signature from the formats of minisign and signify.
func (k publicKey) unwrap(b []byte) ([]byte, error) {
	switch {
	case len(b) == ed25519.SignatureSize:
		return b, nil
	case len(b) != algorithmLen+numberLen+ed25519.SignatureSize:
		return nil, fail(BadSignature, "a signature of %d bytes", len(b))
	case bytes.HasPrefix(b, prehashed):
		return nil, fail(BadSignature, `signature of the file's hash: sign with "minisign -S -l"`)
	case !bytes.HasPrefix(b, pure):
		return nil, fail(BadSignature, "a signature of algorithm %q", b[:algorithmLen])
	case k.number != nil && !bytes.Equal(k.number, b[algorithmLen:][:numberLen]):
		return nil, &failure{kind: BadSignature, err: errors.New("signature by another key")}
	}
	return b[algorithmLen+numberLen:], nil
}

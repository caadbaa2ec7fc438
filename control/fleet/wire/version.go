package wire

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// Version is a version of a list, whichever history it is in.
type Version struct {
	Place
	ID  string // random, of this version alone; "": unknown, it was made by a hub before that
	Sum string // of the entries
}

// NewID returns a random ID for a version.
func NewID() string { return rand.Text() }

const (
	kindVersion = "version"
	kindPlace   = "catalog place"
)

func (v Version) text(list string) []byte {
	return fmt.Appendf(nil, "%q %v %q %q", list, v.Place, v.ID, v.Sum)
}

// Sealed returns the hub's signature of a version of a list. A node that has it can prove
// that the hub has made the version, also where the hub has lost that.
func (v Version) Sealed(key ed25519.PrivateKey, list string) string {
	return detached(key, kindVersion, v.text(list))
}

// Proved reports whether a seal belongs to the version of a list.
func (v Version) Proved(key ed25519.PublicKey, list, seal string) bool {
	return proves(key, kindVersion, v.text(list), seal)
}

func placeText(p Place, t Term) []byte {
	return fmt.Appendf(nil, "%v %q %d %d", p, t.Instance, t.Claim, t.Issued.UnixNano())
}

// SealPlace returns the hub's signature of a catalog's place, and of its term.
func SealPlace(key ed25519.PrivateKey, p Place, t Term) string {
	return detached(key, kindPlace, placeText(p, t))
}

// PlaceProved reports whether a seal belongs to a catalog's place and its term.
func PlaceProved(key ed25519.PublicKey, p Place, t Term, seal string) bool {
	return proves(key, kindPlace, placeText(p, t), seal)
}

func detached(key ed25519.PrivateKey, kind string, text []byte) string {
	return base64.RawStdEncoding.EncodeToString(ed25519.Sign(key, signed(kind, text)))
}

func proves(key ed25519.PublicKey, kind string, text []byte, seal string) bool {
	signature, err := base64.RawStdEncoding.DecodeString(seal)
	return err == nil && len(signature) == ed25519.SignatureSize && ed25519.Verify(key, signed(kind, text), signature)
}

// Package enrollment defines the file with which a host joins a fleet. The hub writes
// it, the node reads it: where the hub is, how to recognise it, the node's own
// credentials, and the key that lists are signed with.
package enrollment

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Version is the version of the format.
const Version = 1

// maxSize bounds the file. It is about 4 KB long.
const maxSize = 1 << 20

// Node has the settings with which a host becomes a node. It contains secrets.
type Node struct {
	Version int      `json:"weir_fleet"`
	Name    string   `json:"node"`
	Labels  []string `json:"labels,omitempty"`

	// Servers are the URLs of the hub, or of a site's server: tls://HOST:PORT.
	Servers []string `json:"servers"`

	// Join is where the node renews what follows when it cannot connect any more; "": at the servers' host.
	Join string `json:"join,omitempty"`

	// TLSFirst says that the servers want TLS to begin before they say anything.
	TLSFirst bool `json:"tls_first,omitempty"`

	// In PEM: the authority that signs the servers' certificates, and the node's own
	// certificate and its key.
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`

	// What the broker grants the node, and the key that proves who it is.
	JWT  string `json:"jwt"`
	Seed string `json:"seed"`

	// PublicKey verifies the lists.
	PublicKey ed25519.PublicKey `json:"public_key"`
}

// name matches names of nodes and labels: a token of a subject, and of metrics.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$`)

// CheckName returns what is wrong with the name of a node, CheckLabel with a label, CheckSite with the name of a site,
// and CheckOperator with that of an operator.
func CheckName(s string) error     { return check("node", s) }
func CheckLabel(s string) error    { return check("label", s) }
func CheckSite(s string) error     { return check("site", s) }
func CheckOperator(s string) error { return check("operator", s) }

func check(what, s string) error {
	if !name.MatchString(s) {
		return fmt.Errorf("%s %q: want 1 to 63 lower-case letters, digits, - and _, and no dots", what, s)
	}
	return nil
}

// Groups returns the groups of a release in a catalog that the node is in: its labels, and
// "node:" with its name.
func (n Node) Groups() []string { return append(slices.Clone(n.Labels), "node:"+n.Name) }

// Read reads a file. It fails if other users may read it, since it contains secrets.
func Read(path string) (Node, error) { return readFile(path, Parse) }

func readFile[T any](path string, parse func([]byte) (T, error)) (v T, err error) {
	f, err := os.Open(path)
	if err != nil {
		return v, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return v, err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return v, fmt.Errorf("%s: mode %04o lets every user read its secrets: chmod o= %[1]s", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = fmt.Errorf("%s: more than %d bytes: that is no enrollment file", path, maxSize)
	}
	if err != nil {
		return v, err
	}
	if v, err = parse(text); err != nil {
		return v, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// Parse returns what the text of a file says. It fails unless that is complete and
// its parts belong together.
func Parse(text []byte) (n Node, err error) {
	err = parse(text, &n, &n.Version, "enrollment file", "enroll", "weir_fleet")
	return n, err
}

// parse is Parse for a kind of file, which a command of weir hub has made, with the version in a field.
func parse(text []byte, v interface{ check() error }, version *int, kind, command, field string) error {
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(v); err != nil {
		return fmt.Errorf("no %s of `weir hub %s`: %w", kind, command, err)
	}
	switch {
	case *version == 0:
		return fmt.Errorf("no %s of `weir hub %s`: it has no %s", kind, command, field)
	case *version != Version:
		return fmt.Errorf("%s of version %d, want %d: make one with `weir hub %s` of this version", kind, *version, Version, command)
	}
	if err := v.check(); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// Check returns what is wrong with a node: the file of it could not be used.
func (n Node) Check() error { return n.check() }

func (n *Node) check() error {
	if err := CheckName(n.Name); err != nil {
		return err
	}
	for _, l := range n.Labels {
		if err := CheckLabel(l); err != nil {
			return err
		}
	}
	if err := checkServers("servers", n.Servers, n.PublicKey); err != nil {
		return err
	}
	if _, err := n.TLS(); err != nil {
		return err
	}
	return Credentials{n.JWT, n.Seed}.check()
}

// Lives returns from when until when the node can connect by what it has, zero times if that cannot be read.
func (n Node) Lives() (from, until time.Time) {
	block, _ := pem.Decode([]byte(n.Certificate))
	if block == nil {
		return from, until
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return from, until
	}
	claims, err := jwt.DecodeUserClaims(n.JWT)
	if err != nil {
		return from, until
	}
	from, until = time.Unix(claims.IssuedAt, 0), c.NotAfter // the certificate begins with the authority
	if ends := time.Unix(claims.Expires, 0); claims.Expires != 0 && ends.Before(until) {
		until = ends
	}
	return from, until
}

// User returns the public key of the node's user, "" if it cannot be read.
func (n Node) User() string {
	if kp, err := nkeys.FromSeed([]byte(n.Seed)); err == nil {
		if public, err := kp.PublicKey(); err == nil {
			return public
		}
	}
	return ""
}

// RenewAt returns when what the node has is renewed: when a third of its life is left, and up to a tenth of it later,
// so that nodes which were enrolled at once come at different times.
func (n Node) RenewAt() time.Time {
	from, until := n.Lives()
	life := max(0, until.Sub(from))
	sum := sha256.Sum256([]byte(n.User()))
	later := time.Duration(float64(life/10) * float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32))
	return until.Add(later - life/3)
}

// soon is how long before a certificate expires that is a problem, at most.
const soon = 90 * 24 * time.Hour

// ExpiresSoon reports whether what is valid from some time until another one should have been renewed, or is to be
// replaced.
func ExpiresSoon(from, until, now time.Time) bool {
	return until.Sub(now) < min(soon, max(0, until.Sub(from))/5)
}

// ServerHost returns the name or address of the host of a server, tls://HOST:PORT.
func ServerHost(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "tls" || u.Hostname() == "" || u.Port() == "" {
		return "", fmt.Errorf("%q: want tls://HOST:PORT", server)
	}
	return u.Hostname(), nil
}

func checkServers(what string, servers []string, key ed25519.PublicKey) error {
	if len(servers) == 0 {
		return errors.New("no " + what)
	}
	for _, s := range servers {
		if _, err := ServerHost(s); err != nil {
			return fmt.Errorf("server %w", err)
		}
	}
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("public_key: %d bytes, want %d", len(key), ed25519.PublicKeySize)
	}
	return nil
}

// Credentials have the permissions that a NATS server grants, and the key that authenticates the client.
type Credentials struct {
	JWT  string `json:"jwt"`
	Seed string `json:"seed"`
}

func (c Credentials) check() error {
	kp, err := nkeys.FromSeed([]byte(c.Seed))
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	if public, err := kp.PublicKey(); err != nil || !nkeys.IsValidPublicUserKey(public) {
		return errors.New("seed: not the key of a user")
	}
	if strings.Count(c.JWT, ".") != 2 {
		return errors.New("jwt: not a JSON web token")
	}
	return nil
}

// TLS returns the configuration of connections to the servers.
func (n Node) TLS() (*tls.Config, error) { return clientTLS(n.CA, n.Certificate, n.Key) }

func clientTLS(ca, certificate, key string) (*tls.Config, error) {
	own, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	authorities, err := pool(ca)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: authorities}, nil
}

func pool(ca string) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM([]byte(ca)) {
		return nil, errors.New("ca: no certificate in PEM")
	}
	return p, nil
}

// Options returns the options of connections to the servers.
func (n Node) Options() ([]nats.Option, error) { return Options(func() Node { return n }) }

// Options returns the options of connections, each with what the node has by then. Replies to the node
// arrive where no other node may subscribe. Servers that a server names are ignored: it does so
// before TLS, where anyone on the way can change it.
func Options(current func() Node) ([]nats.Option, error) {
	n := current()
	c, err := n.TLS()
	if err != nil {
		return nil, err
	}
	o := []nats.Option{
		nats.Name(n.Name),
		nats.Secure(c),
		nats.ClientTLSConfig(func() (tls.Certificate, error) {
			n := current()
			return tls.X509KeyPair([]byte(n.Certificate), []byte(n.Key))
		}, func() (*x509.CertPool, error) { return pool(current().CA) }),
		nats.UserJWT(func() (string, error) { return current().JWT, nil }, func(nonce []byte) ([]byte, error) {
			user, err := nkeys.FromSeed([]byte(current().Seed))
			if err != nil {
				return nil, err
			}
			return user.Sign(nonce)
		}),
		nats.CustomInboxPrefix("_INBOX." + n.Name),
		nats.IgnoreDiscoveredServers(),
	}
	if n.TLSFirst {
		o = append(o, nats.TLSHandshakeFirst())
	}
	return o, nil
}

// URL returns the servers as nats.Connect takes them.
func (n Node) URL() string { return strings.Join(n.Servers, ",") }

// Marshal returns the text of the file.
func (n Node) Marshal() ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	n.Version = Version
	text, err := json.MarshalIndent(n, "", "  ")
	return append(text, '\n'), err
}

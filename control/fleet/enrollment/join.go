package enrollment

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

const (
	// JoinPath is where a hub takes requests to join, and JoinPort its port where a URL has none.
	JoinPath = "/v1/join"
	JoinPort = "4223"

	// MaxRequest bounds a request, which has about 1 kB.
	MaxRequest = 16 << 10

	joinTimeout = 15 * time.Second // of one request
	joinAgain   = 8 * time.Second  // before the next one, at most
)

// Token lets hosts join a fleet. It pins the hub's authority: a host trusts no other one.
type Token struct {
	ID     string // 8 hexadecimal digits
	Secret string
	CA     string // [Pin] of the authority
}

var tokenText = regexp.MustCompile(`^([0-9a-f]{8})\.([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{43})$`)

// NewToken makes a token of the hub with an authority.
func NewToken(ca *x509.Certificate) Token {
	id, secret := make([]byte, 4), make([]byte, 16)
	_, _ = rand.Read(id) // cannot fail
	_, _ = rand.Read(secret)
	return Token{hex.EncodeToString(id), base64.RawURLEncoding.EncodeToString(secret), Pin(ca)}
}

func (t Token) String() string { return t.ID + "." + t.Secret + "." + t.CA }

// ParseToken returns the token that a text is.
func ParseToken(text string) (Token, error) {
	m := tokenText.FindStringSubmatch(text)
	if m == nil {
		return Token{}, errors.New("no token of `weir hub token create` or `weir hub operator create`: it has 8, 22 and 43 characters with dots between them")
	}
	return Token{m[1], m[2], m[3]}, nil
}

// tokenID matches the ID of a token, which is the name of its file.
var tokenID = regexp.MustCompile(`^[0-9a-f]{8}$`)

// CheckToken returns what is wrong with the ID of a token.
func CheckToken(id string) error {
	if !tokenID.MatchString(id) {
		return errors.New("want the ID of a token: its first 8 characters")
	}
	return nil
}

// Pin returns the SHA-256 of an authority's public key, as tokens have it.
func Pin(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Keys are the secrets of a node. They are made where they are used, and a hub need not see them. There are
// two: a server chooses what the key of the user signs, so it must not be that of the certificate.
type Keys struct {
	Key  string `json:"key"`  // of the certificate, in PEM
	Seed string `json:"seed"` // of the user
}

// NewKeys makes the keys of a node.
func NewKeys() (Keys, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Keys{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Keys{}, err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return Keys{}, err
	}
	seed, err := user.Seed()
	return Keys{string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), string(seed)}, err
}

// Request asks a hub for the credentials of a node. It has no private key.
type Request struct {
	Token  string `json:"token,omitempty"` // its ID
	Secret string `json:"secret,omitempty"`

	// A renewal has these instead: what the node was granted before, and the signature of the user there over the
	// bytes that renews returns.
	JWT    string `json:"jwt,omitempty"`
	Former []byte `json:"former_signature,omitempty"`

	CSR       []byte `json:"csr"`       // a certificate request in DER, with the node's name
	User      string `json:"user"`      // the public key of its user
	Signature []byte `json:"signature"` // by that key, over the bytes that signed returns
}

// signed returns the bytes that the key of the user signs: nothing that a broker could have it sign.
func (r Request) signed() []byte { return append([]byte("weir join\x00"), r.CSR...) }

func (r Request) renews() []byte { return append([]byte("weir renew\x00"+r.User+"\x00"), r.CSR...) }

// Request returns the request of a node with a name.
func (k Keys) Request(t Token, name string) (r Request, err error) {
	block, _ := pem.Decode([]byte(k.Key))
	if block == nil {
		return r, errors.New("key: not in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return r, fmt.Errorf("key: %w", err)
	}
	r = Request{Token: t.ID, Secret: t.Secret}
	if r.CSR, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key); err != nil {
		return r, err
	}
	user, err := nkeys.FromSeed([]byte(k.Seed))
	if err != nil {
		return r, fmt.Errorf("seed: %w", err)
	}
	if r.User, err = user.PublicKey(); err == nil {
		r.Signature, err = user.Sign(r.signed())
	}
	return r, err
}

// Renewal returns the request of a node for other credentials, with new keys.
func (n Node) Renewal(k Keys) (r Request, err error) {
	if r, err = k.Request(Token{}, n.Name); err != nil {
		return r, err
	}
	former, err := nkeys.FromSeed([]byte(n.Seed))
	if err != nil {
		return r, fmt.Errorf("seed: %w", err)
	}
	r.JWT = n.JWT
	r.Former, err = former.Sign(r.renews())
	return r, err
}

// Renewed returns what the node was granted that asks for a renewal. It fails unless the key of that user has signed
// the request. Who has granted it is left to the caller.
func (r Request) Renewed() (*jwt.UserClaims, error) {
	claims, err := jwt.DecodeUserClaims(r.JWT)
	if err != nil {
		return nil, fmt.Errorf("what it was granted before: %w", err)
	}
	user, err := nkeys.FromPublicKey(claims.Subject)
	if err == nil {
		err = user.Verify(r.renews(), r.Former)
	}
	if err != nil {
		return nil, fmt.Errorf("the former key: %w", err)
	}
	return claims, nil
}

// Check returns the name of the node, and the public key of its certificate. It fails unless both private keys have
// signed the request.
func (r Request) Check() (name string, key *ecdsa.PublicKey, err error) {
	csr, err := x509.ParseCertificateRequest(r.CSR)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return "", nil, fmt.Errorf("certificate request: %w", err)
	}
	name = csr.Subject.CommonName
	if err := CheckName(name); err != nil {
		return "", nil, err
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return name, nil, errors.New("certificate request: the key is not of the curve P-256")
	}
	if !nkeys.IsValidPublicUserKey(r.User) {
		return name, nil, errors.New("user: not the public key of a user")
	}
	user, err := nkeys.FromPublicKey(r.User)
	if err == nil {
		err = user.Verify(r.signed(), r.Signature)
	}
	if err != nil {
		return name, nil, fmt.Errorf("user: %w", err)
	}
	return name, key, nil
}

// Answer has the credentials that a node has asked for over its connection, or why it gets none.
type Answer struct {
	Node    *Node    `json:"node,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
}

// Refused is the answer of a hub that does not let a host join.
type Refused struct {
	Why  string `json:"error"`
	Keys bool   `json:"keys,omitempty"` // those of the host are revoked: it is to make others
}

func (r Refused) Error() string { return "the hub refuses: " + r.Why }

// JoinURL returns the URL of a hub where hosts join, from one that may lack the scheme and the port.
func JoinURL(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf("%q: want https://HOST:PORT", text)
	}
	port := u.Port()
	if port == "" {
		port = JoinPort
	}
	return "https://" + net.JoinHostPort(u.Hostname(), port), nil
}

// Join has the hub at a URL let a host join, as a node with a name and keys. It tries again until ctx is done, unless
// the hub refuses, or is not that of the token, and says why. The hub counts a host with the same keys once, however
// often it asks.
func Join(ctx context.Context, hub string, t Token, k Keys, name string, again func(error)) (Node, error) {
	r, err := k.Request(t, name)
	if err != nil {
		return Node{}, err
	}
	u, err := url.Parse(hub)
	if err != nil {
		return Node{}, err
	}
	by := t.TLS(u.Hostname())
	for pause := joinAgain / 8; ; pause = min(2*pause, joinAgain) {
		n, err := join(ctx, hub, by, r)
		if err == nil {
			return n, n.take(k, []string{t.CA}, r, name)
		}
		_, refused := errors.AsType[Refused](err)
		_, other := errors.AsType[otherHub](err)
		if refused || other {
			return n, err
		}
		again(err)
		select {
		case <-ctx.Done():
			return n, err
		case <-time.After(pause/2 + mathrand.N(pause)): // hosts that are made at once, at different times
		}
	}
}

// Renew has the hub at a URL renew the credentials of a node, which it asks once. The node need not be able to connect
// any more.
func (n Node) Renew(ctx context.Context, hub string, k Keys, r Request) (next Node, err error) {
	u, err := url.Parse(hub)
	if err != nil {
		return next, err
	}
	roots, err := pool(n.CA)
	if err != nil {
		return next, err
	}
	if next, err = join(ctx, hub, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: u.Hostname()}, r); err == nil {
		err = next.take(k, n.authorities(), r, n.Name)
	}
	return next, err
}

// TakeRenewed completes what a hub has answered over the connection of a node, by its keys.
func (n Node) TakeRenewed(k Keys, r Request, next *Node) error {
	return next.take(k, n.authorities(), r, n.Name)
}

// authorities returns the pins of the certificates that the node trusts, of which the first one issues.
func (n Node) authorities() (pins []string) {
	for _, c := range n.roots() {
		pins = append(pins, Pin(c))
	}
	return pins
}

func (n Node) roots() (all []*x509.Certificate) {
	for rest := []byte(n.CA); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
}

// Issuer returns the pin of that certificate of those it trusts which has issued the node's, "" if none has.
func (n Node) Issuer() string {
	block, _ := pem.Decode([]byte(n.Certificate))
	if block == nil {
		return ""
	}
	own, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}
	for _, c := range n.roots() {
		if own.CheckSignatureFrom(c) == nil {
			return Pin(c)
		}
	}
	return ""
}

// IsReplaced reports whether another certificate of the authority issues than the one that has issued the node's.
func (n Node) IsReplaced() bool {
	pins := n.authorities()
	return len(pins) > 1 && n.Issuer() != pins[0]
}

// join asks once.
func join(ctx context.Context, hub string, secure *tls.Config, r Request) (n Node, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return n, err
	}
	by := http.Client{Transport: &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}, Timeout: joinTimeout}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, hub+JoinPath, bytes.NewReader(body))
	if err != nil {
		return n, err
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := by.Do(q)
	if err != nil {
		return n, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxSize))
	if err != nil {
		return n, err
	}
	if answer.StatusCode != http.StatusOK {
		var why Refused
		if err := json.Unmarshal(text, &why); err != nil || why.Why == "" {
			why.Why = answer.Status
		}
		if answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode >= http.StatusInternalServerError {
			return n, fmt.Errorf("the hub cannot yet: %s", why.Why)
		}
		return n, why
	}
	return n, json.Unmarshal(text, &n)
}

// take adds the keys to what a hub has answered. It fails unless the node was made for a request, and trusts one of some
// authorities.
func (n *Node) take(k Keys, authorities []string, r Request, name string) error {
	n.Key, n.Seed = k.Key, k.Seed
	if err := n.check(); err != nil {
		return fmt.Errorf("what the hub has answered: %w", err)
	}
	claims, err := jwt.DecodeUserClaims(n.JWT)
	if err != nil || claims.Subject != r.User || n.Name != name || !n.trusts(authorities) {
		return errors.New("what the hub has answered is not for this node")
	}
	return nil
}

// IsOf reports whether the node is in the fleet of a token.
func (n *Node) IsOf(t Token) bool { return n.trusts([]string{t.CA}) }

func (n *Node) trusts(pins []string) bool {
	return slices.ContainsFunc(n.authorities(), func(p string) bool { return slices.Contains(pins, p) })
}

// otherHub is why a server is not the hub of a token.
type otherHub struct{ error }

func (e otherHub) Error() string { return "not the hub of this token: " + e.error.Error() }

// TLS returns the configuration of connections to the hub of the token at a host. The hub sends its authority, too.
func (t Token) TLS(host string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // but for what follows
		VerifyConnection: func(s tls.ConnectionState) error {
			root := s.PeerCertificates[len(s.PeerCertificates)-1]
			if Pin(root) != t.CA {
				return otherHub{errors.New("its authority is another one")}
			}
			o := x509.VerifyOptions{DNSName: host, Roots: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			o.Roots.AddCert(root)
			if _, err := s.PeerCertificates[0].Verify(o); err != nil {
				return otherHub{err}
			}
			return nil
		},
	}
}

package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// issuers are the certificates of the authority with their keys: one, or two while the next one replaces the former. The
// first one issues, and all sides trust both. Each step of a replacement is one of [Authority.Rotate],
// [Authority.Proceed], and replaces the file of certificates, so that a crash leaves one of its states.
type issuers struct {
	all  []*x509.Certificate
	keys []crypto.Signer // of each
	pem  []byte          // all, as in the file
	pool *x509.CertPool
	file fs.FileInfo // that they were read from
}

// issuer returns the certificate that issues.
func (i *issuers) issuer() *x509.Certificate { return i.all[0] }

// ordinal returns the number of a certificate of the authority, the first one's 1.
func ordinal(c *x509.Certificate) int {
	n, err := strconv.Atoi(c.Subject.SerialNumber)
	if err != nil {
		return 1
	}
	return n
}

// former returns the index of the oldest certificate, which tokens pin until it is removed, and next that of the newest.
func (i *issuers) former() int { return i.least(1) }
func (i *issuers) next() int   { return i.least(-1) }

func (i *issuers) least(sign int) int {
	at := 0
	for n := range i.all {
		if sign*ordinal(i.all[n]) < sign*ordinal(i.all[at]) {
			at = n
		}
	}
	return at
}

// pinned returns the certificate that tokens pin: the former one, until it is removed.
func (a *Authority) pinned() *x509.Certificate {
	i := a.ca.Load()
	return i.all[i.former()]
}

// pins returns the pins of all.
func (i *issuers) pins() (all []string) {
	for _, c := range i.all {
		all = append(all, enrollment.Pin(c))
	}
	return all
}

// newIssuer makes a certificate of an authority, and its key.
func newIssuer(number int) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	about := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "weir fleet", SerialNumber: strconv.Itoa(number)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(private)
	return certificatePEM(der), key, err
}

// readIssuers reads the certificates of the authority, and their keys among those there are.
func (a *Authority) readIssuers() (i *issuers, err error) {
	i = &issuers{pool: x509.NewCertPool()}
	if i.file, err = os.Stat(filepath.Join(a.dir, caFile)); err != nil {
		return nil, err
	}
	if i.pem, err = a.read(caFile); err != nil {
		return nil, err
	}
	keys, err := a.readKeys(caKeyFile)
	if err != nil {
		return nil, err
	}
	for rest := bytes.TrimSpace(i.pem); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("%s: not in PEM", caFile)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caFile, err)
		}
		at := slices.IndexFunc(keys, func(k crypto.Signer) bool {
			public, ok := k.Public().(interface{ Equal(crypto.PublicKey) bool })
			return ok && public.Equal(c.PublicKey)
		})
		if at < 0 {
			return nil, fmt.Errorf("%s has no key of certificate %d in %s", caKeyFile, len(i.all)+1, caFile)
		}
		i.all, i.keys = append(i.all, c), append(i.keys, keys[at])
		i.pool.AddCert(c)
	}
	if n := len(i.all); n < 1 || n > 2 || n == 2 && ordinal(i.all[0]) == ordinal(i.all[1]) {
		return nil, fmt.Errorf("%s: %d certificates, want one, or two of which one replaces the other", caFile, n)
	}
	return i, nil
}

// Reread takes in that a command has replaced the certificate, and reports whether one has. With an error all stays as
// it was.
func (a *Authority) Reread() (bool, error) {
	file, err := os.Stat(filepath.Join(a.dir, caFile))
	if err != nil {
		return false, err
	}
	if was := a.ca.Load().file; os.SameFile(file, was) && file.ModTime().Equal(was.ModTime()) && file.Size() == was.Size() {
		return false, nil
	}
	next, err := a.readIssuers()
	if err != nil {
		return false, err
	}
	changed := !bytes.Equal(next.pem, a.ca.Load().pem)
	a.ca.Store(next)
	return changed, nil
}

// Step is how far the replacement of the authority's certificate has come.
type Step string

// The steps.
const (
	StepNone  Step = ""      // it is not being replaced
	StepTrust Step = "trust" // nodes and sites are to trust the next one
	StepIssue Step = "issue" // the next one issues, and they are to have certificates of it
)

// Rotation returns the step of the replacement.
func (a *Authority) Rotation() Step { return a.ca.Load().step() }

func (i *issuers) step() Step {
	switch {
	case len(i.all) == 1:
		return StepNone
	case i.next() == 0:
		return StepIssue
	}
	return StepTrust
}

// Next returns the pin of the newest certificate, and all in PEM, which nodes and sites are to trust.
func (a *Authority) Next() (pin string, trusted []byte) {
	i := a.ca.Load()
	return enrollment.Pin(i.all[i.next()]), i.pem
}

// Rotate begins to replace the authority's certificate. It fails where that was begun.
func (a *Authority) Rotate() error {
	return a.replaceIssuers(StepNone, func(i *issuers) error {
		cert, key, err := newIssuer(ordinal(i.issuer()) + 1)
		if err != nil {
			return err
		}
		has, err := keyPEM(i.keys[0])
		if err != nil {
			return err
		}
		// A key without a certificate is of no use, and replaced by the next attempt.
		if err := durable.WriteFile(filepath.Join(a.dir, caKeyFile), has, key); err != nil {
			return err
		}
		return durable.WriteFile(filepath.Join(a.dir, caFile), certificatePEM(i.issuer().Raw), cert)
	})
}

// Proceed ends a step of the replacement: the next certificate issues, or the former one is removed.
func (a *Authority) Proceed(from Step) error {
	return a.replaceIssuers(from, func(i *issuers) error {
		next := i.next()
		cert := certificatePEM(i.all[next].Raw)
		if from == StepTrust {
			return durable.WriteFile(filepath.Join(a.dir, caFile), cert, certificatePEM(i.all[1-next].Raw))
		}
		key, err := keyPEM(i.keys[next])
		if err == nil {
			err = durable.WriteFile(filepath.Join(a.dir, caFile), cert)
		}
		if err == nil {
			err = durable.WriteFile(filepath.Join(a.dir, caKeyFile), key)
		}
		return err
	})
}

// replaceIssuers changes the files of the certificates where the replacement is at a step.
func (a *Authority) replaceIssuers(at Step, change func(*issuers) error) error {
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := a.Reread(); err != nil {
		return err
	}
	if i := a.ca.Load(); i.step() != at {
		return errStep
	} else if err := change(i); err != nil {
		return err
	}
	_, err = a.Reread()
	return err
}

var errStep = errors.New("the authority's certificate is being replaced already: weir hub rotate --show says how far")

// identity has a certificate of this process, which is made anew when another certificate of the authority issues.
type identity struct {
	a      *Authority
	names  []string
	usage  []x509.ExtKeyUsage
	pinned bool // it is of the certificate that tokens pin, and sends that, too

	mu     sync.Mutex
	of     *issuers
	config *tls.Config
}

// current returns the configuration as of the certificates that there are now.
func (i *identity) current() (*tls.Config, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	of := i.a.ca.Load()
	if i.of == of {
		return i.config, nil
	}
	by := 0
	if i.pinned {
		by = of.former()
	}
	der, key, err := of.certificate(by, ServerName, i.names, of.all[by].NotAfter, i.usage...) // its key is on no disk
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(certificatePEM(der), key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		ClientCAs: of.pool, RootCAs: of.pool, ClientAuth: tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true, // one would stay valid after its authority was removed
	}
	if i.pinned {
		c.ClientAuth = tls.NoClientCert
		c.Certificates[0].Certificate = append(c.Certificates[0].Certificate, of.all[by].Raw)
	}
	i.of, i.config = of, c
	return c, nil
}

// server returns the configuration of a server.
func (i *identity) server() (*tls.Config, error) {
	first, err := i.current()
	if err != nil {
		return nil, err
	}
	c := first.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return i.current() }
	return c, nil
}

package endpoint

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"weir/control/quantity"
)

// TLS names the files in PEM that a connection needs.
type TLS struct {
	// The authorities that sign the server's certificate. Default: the system's.
	CA quantity.Path `yaml:"ca,omitempty"`

	// The certificate that weir shows to the server, and the intermediate ones.
	Cert quantity.Path `yaml:"cert,omitempty"`

	// The certificate's private key.
	Key quantity.Path `yaml:"key,omitempty"`
}

// Config returns the settings of connections, and the SHA-256 of the files, which it
// reads.
func (t TLS) Config() (*tls.Config, [sha256.Size]byte, error) {
	var text [3][]byte
	for i, file := range []quantity.Path{t.CA, t.Cert, t.Key} {
		if file == "" {
			continue
		}
		var err error
		if text[i], err = os.ReadFile(string(file)); err != nil {
			return nil, [sha256.Size]byte{}, err
		}
	}
	sum := sha256.Sum256(bytes.Join(text[:], []byte{0}))
	c := &tls.Config{}
	if t.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text[0]) {
			return nil, sum, fmt.Errorf("%s: no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		own, err := tls.X509KeyPair(text[1], text[2])
		if err != nil {
			return nil, sum, fmt.Errorf("certificate %s with key %s: %w", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c, sum, nil
}

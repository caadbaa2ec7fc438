package feed

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
)

// TLS names the files in PEM that a source's URL needs.
type TLS struct {
	// The authorities that sign the server's certificate. Default: the system's.
	CA Path `yaml:"ca,omitempty"`

	// The certificate that weir shows to the server, and the intermediate ones.
	Cert Path `yaml:"cert,omitempty"`

	// The certificate's private key.
	Key Path `yaml:"key,omitempty"`
}

// config returns the settings of connections, and a digest of the files.
func (t TLS) config() (*tls.Config, [sha256.Size]byte, error) {
	var text [3][]byte
	for i, file := range []Path{t.CA, t.Cert, t.Key} {
		if file == "" {
			continue
		}
		var err error
		if text[i], err = os.ReadFile(string(file)); err != nil {
			return nil, [sha256.Size]byte{}, err
		}
	}
	digest := sha256.Sum256(bytes.Join(text[:], []byte{0}))
	c := &tls.Config{}
	if t.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text[0]) {
			return nil, digest, fmt.Errorf("%s: no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		own, err := tls.X509KeyPair(text[1], text[2])
		if err != nil {
			return nil, digest, fmt.Errorf("certificate %s with key %s: %w", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c, digest, nil
}

// ValidateFiles returns what is wrong with the files that requests to a source need. A
// file that may not be read is not wrong: the process that checks may have fewer rights
// than the daemon.
func (s Source) ValidateFiles() error {
	if _, _, err := s.TLS.config(); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("tls: %w", err)
	}
	return nil
}

// connection returns the client for a request. The files are read again each time, so
// that certificates can be renewed.
func (s *source) connection() (*http.Client, error) {
	if s.TLS == (TLS{}) {
		return s.client, nil
	}
	c, digest, err := s.TLS.config()
	if err != nil {
		return nil, fail(Unreachable, "tls: %w", err)
	}
	if digest != s.certificates {
		s.client.CloseIdleConnections()
		s.client = newClient(s.Source, s.internal)
		s.client.Transport.(*http.Transport).TLSClientConfig = c
		s.certificates = digest
	}
	return s.client, nil
}

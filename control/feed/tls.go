package feed

import (
	"net/http"

	"weir/control/endpoint"
)

// TLS names the files in PEM that a source's URL needs.
type TLS = endpoint.TLS

// ValidateFiles returns what is wrong with the files that requests to a source need. A
// file that may not be read is not wrong: the process that checks may have fewer rights
// than the daemon.
func (s Source) ValidateFiles() error { return s.TLS.ValidateFiles() }

// connection returns the client for a request. The files are read again each time, so
// that certificates can be renewed.
func (s *source) connection() (*http.Client, error) {
	if s.TLS == (TLS{}) {
		return s.client, nil
	}
	c, sum, err := s.TLS.Config()
	if err != nil {
		return nil, fail(Unreachable, "tls: %w", err)
	}
	if sum != s.certificates {
		s.client.CloseIdleConnections()
		s.client = newClient(s.Source, s.reachOf)
		s.client.Transport.(*http.Transport).TLSClientConfig = c
		s.certificates = sum
	}
	return s.client, nil
}

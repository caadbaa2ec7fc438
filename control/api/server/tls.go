package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"weir/control/api"
)

// ListenTLS listens at a TCP address for clients whose certificates were issued by
// the authorities in clientCA. The files are PEM. They are read for each connection,
// so that certificates can be replaced while the daemon runs; while they are not
// usable, the last usable ones are used.
func ListenTLS(addr, cert, key, clientCA string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the API at %s: %w", addr, err)
	}
	secure, err := NewTLSListener(LimitListener(l, MaxConnections), cert, key, clientCA)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the API at %s: %w", addr, err), l.Close())
	}
	return secure, nil
}

// NewTLSListener is [ListenTLS] for a listener that listens already.
func NewTLSListener(l net.Listener, cert, key, clientCA string) (net.Listener, error) {
	first, err := mutualTLS(cert, key, clientCA)
	if err != nil {
		return nil, err
	}
	var last atomic.Pointer[tls.Config]
	last.Store(first)
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if c, err := mutualTLS(cert, key, clientCA); err == nil {
				last.Store(c)
			}
			return last.Load(), nil
		},
	}), nil
}

// mutualTLS returns a configuration that requires a client's certificate.
func mutualTLS(cert, key, clientCA string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	authorities, err := api.ReadAuthorities(clientCA)
	if err != nil {
		return nil, fmt.Errorf("authorities of clients: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{own},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    authorities,
		// A ticket would stay valid after the client's authority was removed.
		SessionTicketsDisabled: true,
	}, nil
}

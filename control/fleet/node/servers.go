package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout bounds the time for a connection, with looking its server's name up, and connectTimeout that for an
	// address to take it: TCP tries twice more within that. Addresses that have gone are not to keep a node from a hub
	// that waits for it.
	dialTimeout    = 10 * time.Second
	connectTimeout = 4 * time.Second

	// maxAddresses bounds the addresses of a server that are tried, and protected.
	maxAddresses = 16
)

// servers are the addresses of the hub. The host must not be cut off from them while it is not
// connected, too: else it could not connect again. They are the dialer of connections, and learn
// addresses from that. They are safe for concurrent use.
type servers struct {
	path   string // of the file with the addresses of names; "": there is none
	log    *slog.Logger
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	mu     sync.Mutex              // protects what follows
	names  []string                // of the URLs
	fixed  []netip.Addr            // of the URLs
	found  map[string][]netip.Addr // by name: where a connection was made, as long as they are looked up
	dialed string                  // the name that was dialed last
	answer []netip.Addr            // its addresses, as looked up: whose they are is unknown
	trying netip.Addr              // the one of these that was tried last; zero: none

	read     atomic.Uint64 // times that something came from a server
	accepted atomic.Uint64 // connections

	saving sync.Mutex // held while the file is written; protects saved
	saved  []byte
}

// newServers returns the servers at some URLs, with what is saved of them in a directory; "":
// nothing is.
func newServers(urls []string, dir string, log *slog.Logger) *servers {
	s := &servers{log: log, found: make(map[string][]netip.Addr), saved: []byte("{}\n"), lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}}
	s.set(urls)
	if dir == "" {
		return s
	}
	s.path = filepath.Join(dir, "servers")
	if err := s.load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("the saved addresses of the hub cannot be read, they come back with it: " + err.Error())
	}
	return s
}

// set makes the servers those at some URLs.
func (s *servers) set(urls []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names, s.fixed = nil, nil
	defer func() {
		maps.DeleteFunc(s.found, func(name string, _ []netip.Addr) bool { return !slices.Contains(s.names, name) })
	}()
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue // the connection says so
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			s.fixed = append(s.fixed, plain(a))
		} else {
			s.names = append(s.names, u.Hostname())
		}
	}
}

// plain returns an address as packets have it.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func (s *servers) load() error {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	var all map[string][]netip.Addr
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	for _, name := range s.names {
		if some := all[name]; some != nil {
			s.found[name] = some[:min(len(some), maxAddresses)]
		}
	}
	s.saved = text
	return nil
}

// try protects an address of a name that is about to be tried, and not the one before, if no connection
// was made there: who answers for the resolver may have no key of the hub.
func (s *servers) try(host string, answer []netip.Addr, a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialed, s.answer, s.trying = host, answer, netip.Addr{}
	if slices.Contains(s.names, host) {
		s.trying = plain(a)
	}
}

// proved takes in that the server at HOST:PORT has a key of the hub: the address is protected from now
// on, and those that it had before and the resolver does not name any more are not.
func (s *servers) proved(address string) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return // the connection has ended
	}
	a := plain(at.Addr())
	s.mu.Lock()
	defer s.mu.Unlock()
	if a != s.trying {
		return // an address of the enrollment, or another connection by now
	}
	all := []netip.Addr{a}
	for _, before := range s.found[s.dialed] {
		if before != a && slices.ContainsFunc(s.answer, func(b netip.Addr) bool { return plain(b) == before }) {
			all = append(all, before)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	s.found[s.dialed] = all
}

// Dial implements [nats.CustomDialer]. An address is protected before it is tried.
func (s *servers) Dial(network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var all []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		all = []netip.Addr{a}
	} else if all, err = s.lookup(ctx, host); err != nil {
		return nil, err
	}
	all = slices.Clone(all[:min(len(all), maxAddresses)])
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	err = fmt.Errorf("%s has no address", host)
	for i, a := range all {
		end, _ := ctx.Deadline()
		s.try(host, all, a)
		d := net.Dialer{Timeout: min(connectTimeout, time.Until(end)/time.Duration(len(all)-i))}
		var conn net.Conn
		if conn, err = d.DialContext(ctx, network, net.JoinHostPort(a.String(), port)); err == nil {
			s.accepted.Add(1)
			return counted{conn, &s.read}, nil
		}
	}
	return nil, err
}

// counted is a connection that counts what comes.
type counted struct {
	net.Conn
	read *atomic.Uint64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(1)
	return n, err
}

// addresses returns the addresses of all servers.
func (s *servers) addresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.fixed)
	for _, name := range s.names {
		for _, a := range s.found[name] {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	if s.trying.IsValid() && !slices.Contains(all, s.trying) {
		all = append(all, s.trying)
	}
	return all
}

// save saves the addresses of the names, for a start while the hub or the resolver is
// away.
func (s *servers) save() {
	if s.path == "" {
		return
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	text, err := json.Marshal(s.found)
	s.mu.Unlock()
	if text = append(text, '\n'); bytes.Equal(text, s.saved) {
		return
	}
	if err == nil {
		err = writeFile(s.path, text)
	}
	if err != nil {
		s.log.Error("the addresses of the hub cannot be saved: " + err.Error())
		return
	}
	s.saved = text
}

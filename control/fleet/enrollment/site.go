package enrollment

import (
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"fmt"
)

// Site has the settings with which a host becomes the server of a site: nodes connect to it
// instead of the hub. It contains secrets.
type Site struct {
	Version int    `json:"weir_site"`
	Name    string `json:"site"`

	// Hub are the URLs of the hub for servers of sites: tls://HOST:PORT.
	Hub []string `json:"hub"`

	// In PEM: the authority of the fleet, and the certificate with which the server meets
	// nodes and the hub, and its key.
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`

	// Signed claims: of the operator, and of the accounts of the stream, of nodes, and of
	// the server's events.
	Operator      string `json:"operator"`
	StreamAccount string `json:"stream_account"`
	NodesAccount  string `json:"nodes_account"`
	System        string `json:"system"`

	// Stream and Nodes are for the connections to the hub, in these accounts. Own, in that
	// of the stream, Fetch, in that of nodes, and Events are for connections within the
	// process, and good for nothing else.
	Stream Credentials `json:"stream"`
	Nodes  Credentials `json:"nodes"`
	Own    Credentials `json:"own"`
	Fetch  Credentials `json:"fetch"`
	Events Credentials `json:"events"`

	// PublicKey verifies the lists.
	PublicKey ed25519.PublicKey `json:"public_key"`
}

// ReadSite reads a file. It fails if other users may read it, since it contains secrets.
func ReadSite(path string) (Site, error) { return readFile(path, ParseSite) }

// ParseSite returns what the text of a file says. It fails unless that is complete and
// its parts belong together.
func ParseSite(text []byte) (s Site, err error) {
	err = parse(text, &s, &s.Version, "file of a site", "site", "weir_site")
	return s, err
}

func (s *Site) check() error {
	if err := CheckSite(s.Name); err != nil {
		return err
	}
	if err := checkServers("hub", s.Hub, s.PublicKey); err != nil {
		return err
	}
	for what, c := range map[string]Credentials{"stream": s.Stream, "nodes": s.Nodes, "own": s.Own, "fetch": s.Fetch, "events": s.Events} {
		if err := c.check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	_, err := s.TLS()
	return err
}

// TLS returns the configuration of connections to the hub and, with the certificates
// of nodes required, of those that the server accepts.
func (s Site) TLS() (*tls.Config, error) {
	c, err := clientTLS(s.CA, s.Certificate, s.Key)
	if err != nil {
		return nil, err
	}
	c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
	return c, nil
}

// Marshal returns the text of the file.
func (s Site) Marshal() ([]byte, error) {
	s.Version = Version
	if err := s.check(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}

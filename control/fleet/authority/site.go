package authority

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

const sitesDir = "sites"

// Site is a site that was enrolled.
type Site struct {
	Name     string    `json:"site"`
	Servers  []string  `json:"servers"`     // URLs at which the site's nodes reach its server
	Stream   string    `json:"stream_user"` // the public keys that it proves itself to the hub with
	Nodes    string    `json:"nodes_user"`
	Enrolled time.Time `json:"enrolled"`
	Expires  time.Time `json:"expires"` // the certificate
	Revoked  time.Time `json:"revoked,omitzero"`

	// Issuers are the pins of the authority's certificates in its file, of which the first one has issued its own.
	Issuers []string `json:"issuers,omitempty"`

	// Former are users of the site that are revoked since it was enrolled anew.
	Former map[string]time.Time `json:"former,omitempty"`
}

// EnrollSite makes the credentials of a site's server, which nodes reach at some URLs
// and which reaches the hub at others. One that was enrolled before, under the same
// name, is revoked.
func (a *Authority) EnrollSite(name string, servers, hub []string) (s enrollment.Site, err error) {
	if err := enrollment.CheckSite(name); err != nil {
		return s, err
	}
	names := []string{ServerName}
	for _, text := range servers {
		host, err := enrollment.ServerHost(text)
		if err != nil {
			return s, fmt.Errorf("server %w, as nodes of the site reach it", err)
		}
		names = append(names, host)
	}
	if len(names) == 1 {
		return s, errors.New("no server: want tls://HOST:PORT, as nodes of the site reach it")
	}
	expires := a.expiry(siteLife)
	by := a.ca.Load()
	der, key, err := by.certificate(0, name, names, expires, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return s, err
	}
	s = enrollment.Site{
		Name: name, Hub: hub, CA: string(by.pem), Certificate: string(certificatePEM(der)), Key: string(key), PublicKey: a.PublicKey(),
	}
	unlock, err := a.lock()
	if err != nil {
		return s, err
	}
	defer unlock()
	m := Site{Name: name, Servers: servers, Enrolled: time.Now().UTC(), Expires: expires.UTC(), Former: make(map[string]time.Time), Issuers: by.pins()}
	if m.Stream, s.Stream, err = siteUser(name, a.stream, mirrorPermissions(name)); err != nil {
		return s, err
	}
	if m.Nodes, s.Nodes, err = siteUser(name, a.account, relayPermissions()); err != nil {
		return s, err
	}
	if _, s.Own, err = siteUser(name, a.stream, within()); err != nil {
		return s, err
	}
	if _, s.Fetch, err = siteUser(name, a.account, within()); err != nil {
		return s, err
	}
	if _, s.Events, err = siteUser(name, a.system, within()); err != nil {
		return s, err
	}
	if _, s.Operator, err = a.Operator(); err != nil {
		return s, err
	}
	if _, s.System, err = a.System(); err != nil {
		return s, err
	}
	before, err := a.Site(name)
	switch {
	case err == nil:
		maps.Copy(m.Former, before.Former)
		m.Former[before.Stream], m.Former[before.Nodes] = m.Enrolled, m.Enrolled
	case !errors.Is(err, fs.ErrNotExist):
		return s, err
	}
	if err := record(a, sites, m); err != nil {
		return s, err
	}
	if _, s.StreamAccount, err = a.Stream(); err != nil {
		return s, err
	}
	_, s.NodesAccount, err = a.Account()
	return s, err
}

var noLimits = jwt.NatsLimits{Subs: jwt.NoLimit, Data: jwt.NoLimit, Payload: jwt.NoLimit}

// mirrorPermissions let a site's server have a mirror in the account of the stream at the
// hub, and receive live messages.
func mirrorPermissions(site string) jwt.UserPermissionLimits {
	p := leaf()
	create := "$JS." + wire.HubDomain + ".API.CONSUMER.CREATE." + wire.Stream
	p.Pub.Allow = jwt.StringList{create, create + ".>", "$JS.FC." + wire.Stream + ".>"}
	p.Sub.Allow = jwt.StringList{
		wire.DownPrefix + ">",
		wire.MirrorPrefix(site) + ".>",
		"$JSC.R.>", // where it is answered that the mirror may begin
	}
	return p
}

// relayPermissions let it pass on, in the account of the nodes, their reports and
// answers.
func relayPermissions() jwt.UserPermissionLimits {
	p := leaf()
	p.Pub.Allow = jwt.StringList{"weir.v1.up.>", wire.HubInbox + ".>"}
	p.Sub.Allow = jwt.StringList{"weir.v1.ask.>", "_INBOX.>"} // what its nodes ask the hub is answered
	return p
}

func leaf() (p jwt.UserPermissionLimits) {
	p.NatsLimits = noLimits
	p.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeLeafnode}
	return p
}

// within are the permissions of connections within the process.
func within() (p jwt.UserPermissionLimits) {
	p.NatsLimits = noLimits
	p.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeInProcess}
	return p
}

// siteUser makes a user of a site.
func siteUser(name string, account nkeys.KeyPair, may jwt.UserPermissionLimits) (public string, c enrollment.Credentials, err error) {
	if public, c.Seed, err = newUser(); err != nil {
		return "", c, err
	}
	claims := jwt.NewUserClaims(public)
	claims.Name, claims.UserPermissionLimits = name, may
	c.JWT, err = claims.Encode(account)
	return public, c, err
}

// RevokeSite revokes the credentials of a site's server.
func (a *Authority) RevokeSite(name string) error {
	return change(a, sites, name, func(m *Site) error {
		m.Revoked = cmp.Or(m.Revoked, time.Now().UTC())
		return nil
	})
}

// Site returns a site that was enrolled. It fails with [fs.ErrNotExist] where there is
// none.
func (a *Authority) Site(name string) (Site, error) {
	if err := enrollment.CheckSite(name); err != nil {
		return Site{}, err
	}
	return read(a, sites, name)
}

// revokeSites adds to claims which users of sites are revoked: those that are a site's,
// and former ones.
func (a *Authority) revokeSites(c *jwt.AccountClaims, user func(Site) string) error {
	enrolled, err := a.Sites()
	for _, s := range enrolled {
		if !s.Revoked.IsZero() {
			c.RevokeAt(user(s), whenever)
		}
		for former := range s.Former {
			c.RevokeAt(former, whenever)
		}
	}
	return err
}

// Sites returns the sites that were enrolled, by name.
func (a *Authority) Sites() ([]Site, error) { return all(a, sites) }

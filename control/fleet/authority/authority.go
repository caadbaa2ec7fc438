// Package authority makes and keeps the keys of a fleet: of the authority that signs
// the certificates of servers and nodes, of the NATS operator and accounts that say
// what each may do, and the one that lists are signed with.
//
// They are files of a directory that only its owner may read. It makes a host the
// fleet's hub: it is to be backed up, and not to be on a broker that is not the hub's
// own.
package authority

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// Lifetimes of the authority's own certificate, of those of sites, whose files are replaced by hand, and of those of
// nodes, which renew them, where [Terms] say nothing else. The hub makes its own certificates at each
// start, and they are valid as long as the authority's.
const (
	caLife   = 20 * 365 * 24 * time.Hour
	siteLife = 5 * 365 * 24 * time.Hour
	nodeLife = 90 * 24 * time.Hour
)

// The files of the directory.
const (
	caFile       = "ca.pem"
	caKeyFile    = "ca.key"
	operatorFile = "operator.seed"
	accountFile  = "account.seed"
	streamFile   = "stream.seed"
	systemFile   = "system.seed"
	scopeFile    = "nodes.seed"
	fleetFile    = "fleet.key"
	nodesDir     = "nodes"
)

// Incomplete is the name of a directory that marks a directory of keys, or of a hub's state: a
// restore has put only some of a backup there.
const Incomplete = ".incomplete"

// CheckComplete fails for a directory that is marked by [Incomplete].
func CheckComplete(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, Incomplete)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return fmt.Errorf("%s has only some of a backup, since a restore was interrupted: run weir-hub restore again", dir)
}

// Authority has the keys of a fleet.
type Authority struct {
	dir string
	ca  atomic.Pointer[issuers]

	operator, account, stream, system signer

	scope signer // of nodes, which get the permissions of its scope
	fleet ed25519.PrivateKey

	terms  atomic.Pointer[Terms]     // nil: the zero Terms
	tidied atomic.Pointer[time.Time] // the time of the last [Authority.Tidy]; nil: none

	signing sync.Mutex
	signed  map[string]signedAccount // by public key, and what they are for
}

// Terms say which certificates nodes are granted.
type Terms struct {
	Life time.Duration // of their certificates; 0: 90 days
	Join string        // the URL at which they reach the hub when they cannot connect; "": nowhere
}

// SetTerms has nodes be granted something else from now on.
func (a *Authority) SetTerms(t Terms) { a.terms.Store(&t) }

// signer is a key that signs claims.
type signer struct {
	nkeys.KeyPair
	public string
}

// signedAccount is an account's claims as they were signed last.
type signedAccount struct {
	unsigned []byte // as JSON
	claims   jwt.AccountClaims
	token    string
}

// sign signs the claims of an account for some use, and returns their signed form. It stays
// the same while they do: it has a time, and servers take another one for a change.
func (a *Authority) sign(c *jwt.AccountClaims, as string) (string, error) {
	unsigned, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	a.signing.Lock()
	defer a.signing.Unlock()
	key := c.Subject + as
	if last, ok := a.signed[key]; ok && bytes.Equal(last.unsigned, unsigned) {
		*c = last.claims
		return last.token, nil
	}
	token, err := c.Encode(a.operator)
	if err != nil {
		return "", err
	}
	if a.signed == nil {
		a.signed = make(map[string]signedAccount)
	}
	a.signed[key] = signedAccount{unsigned, *c, token}
	return token, nil
}

// Init makes the keys of a new fleet in a directory, which must not have any.
func Init(dir string) (*Authority, error) {
	if err := durable.MkdirAll(dir); err != nil {
		return nil, err
	}
	if err := CheckComplete(dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, fleetFile)); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: it has the keys of a fleet already, which are not replaced: the nodes trust no others", dir)
	}
	ca, caKey, err := newIssuer(1)
	if err != nil {
		return nil, err
	}
	_, fleet, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	fleetText, err := keyPEM(fleet)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{caFile: ca, caKeyFile: caKey}
	for _, name := range []string{operatorFile, accountFile, streamFile, systemFile, scopeFile} {
		create := nkeys.CreateAccount
		if name == operatorFile {
			create = nkeys.CreateOperator
		}
		kp, err := create()
		if err != nil {
			return nil, err
		}
		seed, err := kp.Seed()
		if err != nil {
			return nil, err
		}
		files[name] = append(seed, '\n')
	}
	if err := durable.MkdirAll(filepath.Join(dir, nodesDir)); err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := durable.WriteFile(filepath.Join(dir, name), text); err != nil {
			return nil, err
		}
	}
	if err := durable.WriteFile(filepath.Join(dir, fleetFile), fleetText); err != nil { // last: with it, all are there
		return nil, err
	}
	return Open(dir)
}

// Open reads the keys of a directory. It fails if other users may read them.
func Open(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	if err := a.open(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: make them with `weir hub init %s`", err, dir)
		}
		return nil, fmt.Errorf("keys of the fleet: %w", err)
	}
	return a, nil
}

func (a *Authority) open() (err error) {
	if err := CheckComplete(a.dir); err != nil {
		return err
	}
	ca, err := a.readIssuers()
	if err != nil {
		return err
	}
	a.ca.Store(ca)
	fleet, err := a.readKeys(fleetFile)
	if err != nil {
		return err
	}
	var ok bool
	if a.fleet, ok = fleet[0].(ed25519.PrivateKey); !ok {
		return fmt.Errorf("%s: not an Ed25519 key", fleetFile)
	}
	for _, k := range []struct {
		name string
		to   *signer
	}{{operatorFile, &a.operator}, {accountFile, &a.account}, {streamFile, &a.stream}, {systemFile, &a.system}, {scopeFile, &a.scope}} {
		seed, err := a.read(k.name)
		if err != nil {
			return err
		}
		if k.to.KeyPair, err = nkeys.FromSeed([]byte(strings.TrimSpace(string(seed)))); err == nil {
			k.to.public, err = k.to.PublicKey()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

// read reads a file that no other user may read.
func (a *Authority) read(name string) ([]byte, error) {
	path := filepath.Join(a.dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("%s: mode %04o lets every user read it: chmod 600 it", path, mode)
	}
	return os.ReadFile(path)
}

// readKeys reads a file of one key or more.
func (a *Authority) readKeys(name string) (keys []crypto.Signer, err error) {
	text, err := a.read(name)
	if err != nil {
		return nil, err
	}
	for rest := bytes.TrimSpace(text); len(keys) == 0 || len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("%s: not in PEM", name)
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("%s: not a key to sign with", name)
		}
		keys = append(keys, signer)
	}
	return keys, nil
}

// Key returns the key that lists are signed with.
func (a *Authority) Key() ed25519.PrivateKey { return a.fleet }

// PublicKey verifies what Key has signed.
func (a *Authority) PublicKey() ed25519.PublicKey { return a.fleet.Public().(ed25519.PublicKey) }

// Member is a node that was enrolled.
type Member struct {
	Name        string    `json:"node"`
	Labels      []string  `json:"labels,omitempty"`
	Labeled     time.Time `json:"labeled,omitzero"` // when they were set, if not by enrolling it
	User        string    `json:"user"`             // the public key that it proves itself with
	Certificate string    `json:"certificate"`      // SHA-256 of the DER form
	Enrolled    time.Time `json:"enrolled"`
	Renewed     time.Time `json:"renewed,omitzero"`
	Expires     time.Time `json:"expires"` // the certificate
	Revoked     time.Time `json:"revoked,omitzero"`
	Forgotten   time.Time `json:"forgotten,omitzero"` // it is revoked, and shown no more

	// Site is whose servers it connects to, "" for the hub's; nil: those of its file, whatever they are now.
	Site *string `json:"site,omitempty"`

	// Token and From are the token with which it has joined, and the address; "": a command has enrolled it.
	Token string `json:"token,omitempty"`
	From  string `json:"from,omitempty"`

	// Before is the user that the node has had until it was renewed, and may have until it has connected as User.
	Before string `json:"before,omitempty"`

	// Former are users of the node that are revoked since it was enrolled anew, or has connected as the next one.
	Former map[string]time.Time `json:"former,omitempty"`

	// Ends has the times from which on users of the node cannot connect.
	Ends map[string]time.Time `json:"ends,omitempty"`
}

// Issued returns when the node was enrolled or renewed last.
func (m Member) Issued() time.Time {
	if m.Renewed.After(m.Enrolled) {
		return m.Renewed
	}
	return m.Enrolled
}

// Enroll makes the credentials of a node, and its keys. One that was enrolled before, under the
// same name, is revoked.
func (a *Authority) Enroll(name string, labels, servers []string) (enrollment.Node, error) {
	return a.enroll(name, labels, servers, nil)
}

// EnrollAt is Enroll for a node that connects to the servers of a site, or else to those of the hub, also when these
// are others.
func (a *Authority) EnrollAt(site, name string, labels, servers []string) (enrollment.Node, error) {
	servers, err := a.ServersOf(site, servers)
	if err != nil {
		return enrollment.Node{}, err
	}
	return a.enroll(name, labels, servers, &site)
}

func (a *Authority) enroll(name string, labels, servers []string, site *string) (enrollment.Node, error) {
	if err := enrollment.CheckName(name); err != nil {
		return enrollment.Node{}, err
	}
	keys, err := enrollment.NewKeys()
	if err != nil {
		return enrollment.Node{}, err
	}
	r, err := keys.Request(enrollment.Token{}, name)
	if err != nil {
		return enrollment.Node{}, err
	}
	n, m, err := a.grant(r, labels, servers)
	if err != nil {
		return enrollment.Node{}, err
	}
	n.Key, n.Seed, m.Site = keys.Key, keys.Seed, site
	if _, err := n.Marshal(); err != nil { // the labels and servers may be wrong
		return enrollment.Node{}, err
	}
	unlock, err := a.lock()
	if err != nil {
		return enrollment.Node{}, err
	}
	defer unlock()
	return n, a.enter(m)
}

// grant makes the credentials that a node asks for, without its keys, and its record.
func (a *Authority) grant(r enrollment.Request, labels, servers []string) (n enrollment.Node, m Member, err error) {
	name, key, err := r.Check()
	if err != nil {
		return n, m, err
	}
	var terms Terms
	if t := a.terms.Load(); t != nil {
		terms = *t
	}
	expires := a.expiry(cmp.Or(terms.Life, nodeLife)).Truncate(time.Second)
	token, err := a.user(r.User, name, a.scope, expires)
	if err != nil {
		return n, m, err
	}
	by := a.ca.Load()
	der, err := by.certify(0, key, name, nil, expires, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return n, m, err
	}
	sum := sha256.Sum256(der)
	n = enrollment.Node{
		Version: enrollment.Version, Name: name, Labels: labels, Servers: servers, Join: terms.Join,
		CA: string(by.pem), Certificate: string(certificatePEM(der)), JWT: token, PublicKey: a.PublicKey(),
	}
	m = Member{
		Name: name, Labels: labels, User: r.User, Certificate: hex.EncodeToString(sum[:]), Enrolled: time.Now().UTC(), Expires: expires.UTC(),
		Ends: map[string]time.Time{r.User: expires.UTC()},
	}
	return n, m, nil
}

// enter records a node. The credentials of one that was enrolled before, under the same name, are revoked.
// The authority is locked.
func (a *Authority) enter(m Member) error {
	before, err := read(a, nodes, m.Name)
	switch {
	case err == nil:
		m.follows(before, before.User, before.Before)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return record(a, nodes, m)
}

// follows takes in what is known of the node's former users, to which some are added.
func (m *Member) follows(before Member, users ...string) {
	now := m.Issued()
	if m.Former = before.Former; m.Former == nil {
		m.Former = make(map[string]time.Time)
	}
	for _, u := range users {
		if u != "" && u != m.User && u != m.Before {
			m.Former[u] = now
		}
	}
	for u, at := range before.Ends {
		if _, former := m.Former[u]; former || u == m.Before {
			m.Ends[u] = at
		}
	}
}

// Revoke revokes the credentials of a node.
func (a *Authority) Revoke(name string) error {
	return change(a, nodes, name, func(m *Member) error {
		m.Revoked = cmp.Or(m.Revoked, time.Now().UTC())
		return nil
	})
}

// RevokeUser revokes one user of a node, by its public key, which need not be known: an older
// backup of the keys lacks the users and the nodes that were enrolled since.
func (a *Authority) RevokeUser(name, user string) error {
	if err := enrollment.CheckName(name); err != nil {
		return err
	}
	if !nkeys.IsValidPublicUserKey(user) {
		return fmt.Errorf("%q is not the public key of a user, as the hub logs it", user)
	}
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	members, err := a.AllMembers()
	if err != nil {
		return err
	}
	for other, m := range members {
		if other != name && m.User == user {
			return fmt.Errorf("the key is of node %q", other)
		}
	}
	now := time.Now().UTC()
	m, ok := members[name]
	switch {
	case !ok:
		m = Member{Name: name, User: user, Enrolled: now, Revoked: now} // when it was enrolled is unknown
	case m.User == user && m.Revoked.IsZero():
		return fmt.Errorf("node %q was enrolled with the key last: revoke the node", name)
	case m.User == user:
		return nil
	default:
		if m.Former == nil {
			m.Former = make(map[string]time.Time)
		}
		m.Former[user] = now
	}
	return record(a, nodes, m)
}

// Knows reports whether the directory of keys has a user of a node, also a former one.
func (a *Authority) Knows(name, user string) (bool, error) {
	if err := enrollment.CheckName(name); err != nil {
		return false, err
	}
	m, err := read(a, nodes, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	_, former := m.Former[user]
	return former || m.User == user || m.Before == user, err
}

// Forget leaves a node that is revoked out of Members. Its credentials stay revoked: they
// would be good again if nothing were known of it.
func (a *Authority) Forget(name string) error {
	return change(a, nodes, name, func(m *Member) error {
		if m.Revoked.IsZero() {
			return fmt.Errorf("node %q is not revoked, and may connect: revoke it first", name)
		}
		m.Forgotten = cmp.Or(m.Forgotten, time.Now().UTC())
		return nil
	})
}

// Members returns the nodes that were enrolled, by name, but for those that are forgotten.
func (a *Authority) Members() (map[string]Member, error) {
	members, err := a.AllMembers()
	maps.DeleteFunc(members, func(_ string, m Member) bool { return !m.Forgotten.IsZero() })
	return members, err
}

// AllMembers returns the nodes that were ever enrolled, by name.
func (a *Authority) AllMembers() (map[string]Member, error) {
	files, err := all(a, nodes)
	byName := make(map[string]Member, len(files))
	for _, m := range files {
		byName[m.Name] = m
	}
	return byName, err
}

// Stamp changes when a node, site or operator is recorded or revoked, or a node is forgotten, and for a moment
// after that. An authority without members has the zero Stamp.
type Stamp struct{ nodes, sites, operators, young int64 }

// A directory that has changed within stampSettles may change again without another time: kernels before
// 6.13 use the time of the last tick. Its stamp is another one each stampStays, and when it
// is older, so that what was read meanwhile is read again.
const (
	stampSettles = time.Second
	stampStays   = 250 * time.Millisecond
)

// Stamp returns the present stamp.
func (a *Authority) Stamp() (s Stamp, err error) {
	now := time.Now()
	for dir, at := range map[string]*int64{nodesDir: &s.nodes, sitesDir: &s.sites, OperatorsDir: &s.operators} { // files are replaced in them
		info, err := os.Stat(filepath.Join(a.dir, dir))
		if err != nil {
			if dir != nodesDir && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return Stamp{}, err
		}
		*at = info.ModTime().UnixNano()
		if now.Sub(info.ModTime()).Abs() < stampSettles {
			s.young = now.UnixNano() / int64(stampStays)
		}
	}
	return s, nil
}

// Operator returns the claims of the fleet's NATS operator and their signed form.
func (a *Authority) Operator() (*jwt.OperatorClaims, string, error) {
	c := jwt.NewOperatorClaims(a.operator.public)
	c.Name, c.SystemAccount = "weir fleet", a.system.public
	token, err := c.Encode(a.operator)
	return c, token, err
}

// Account returns the claims of the account that hub and nodes are in, with the nodes
// that are revoked, and their signed form. The stream is in another one, which nodes have no
// access to, but for what is live: the server answers itself what they fetch. See
// broker.Server.
func (a *Authority) Account() (*jwt.AccountClaims, string, error) { return a.accountOfNodes(false) }

// ClusterAccount returns the same for the servers of a cluster. There JetStream answers what a node
// fetches, on whatever subject the node names: it must not be one of the stream's, or of
// JetStream's API, and may be one that other nodes read.
func (a *Authority) ClusterAccount() (*jwt.AccountClaims, string, error) {
	return a.accountOfNodes(true)
}

// whenever is the time of all revocations: servers let in a user whose credentials were issued
// after it. Each enrollment makes a new user, and the clock may have been ahead then.
var whenever = time.Unix(9_999_999_999, 0)

func (a *Authority) accountOfNodes(fetch bool) (*jwt.AccountClaims, string, error) {
	c := jwt.NewAccountClaims(a.account.public)
	c.Name = "weir"
	as := ""
	for _, e := range streamExports() {
		if e.Type == jwt.Stream || fetch {
			c.Imports.Add(&jwt.Import{Name: e.Name, Subject: e.Subject, Type: e.Type, Account: a.stream.public})
		}
	}
	if fetch {
		as = " with fetch"
	}
	scope := jwt.NewUserScope()
	scope.Key, scope.Role, scope.Template = a.scope.public, "node", nodePermissions()
	c.SigningKeys.AddScopedSigner(scope)
	members, err := a.AllMembers()
	if err != nil {
		return nil, "", err
	}
	var now time.Time
	if at := a.tidied.Load(); at != nil {
		now = *at
	}
	for _, m := range members {
		revoke := func(user string) {
			if !m.over(user, now, clockSlack) { // else servers refuse it without
				c.RevokeAt(user, whenever)
			}
		}
		if !m.Revoked.IsZero() {
			revoke(m.User)
			revoke(m.Before)
		}
		for user := range m.Former {
			revoke(user)
		}
	}
	if err := a.revokeSites(c, func(s Site) string { return s.Nodes }); err != nil {
		return nil, "", err
	}
	token, err := a.sign(c, as)
	return c, token, err
}

// Unrevoking returns the signed form of an account's claims without what they revoke, for a
// server that cannot read as many from it.
func (a *Authority) Unrevoking(c *jwt.AccountClaims) (string, error) {
	bare := *c
	bare.Revocations = nil
	return bare.Encode(a.operator)
}

// streamExports returns the subjects of the stream's account that the nodes' account may
// import: not all that is live, which has the accounts, too.
func streamExports() jwt.Exports {
	return jwt.Exports{
		{Name: "catalog", Subject: jwt.Subject(wire.DownPrefix + wire.CatalogSubject()), Type: jwt.Stream},
		{Name: "lists", Subject: wire.DownPrefix + wire.ListsSubjects, Type: jwt.Stream},
		{Name: "fetch", Subject: jwt.Subject(wire.FetchSubject), Type: jwt.Service, ResponseType: jwt.ResponseTypeSingleton},
	}
}

// Stream returns the claims of the account that the stream is in, and their signed
// form.
func (a *Authority) Stream() (*jwt.AccountClaims, string, error) {
	c := jwt.NewAccountClaims(a.stream.public)
	c.Name = "stream"
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	c.Exports = streamExports()
	if err := a.revokeSites(c, func(s Site) string { return s.Stream }); err != nil {
		return nil, "", err
	}
	// Servers have this mapping of their JetStream domain while sites are connected, but
	// forget it when the account changes.
	c.AddMapping("$JS."+wire.HubDomain+".API.CONSUMER.>", jwt.WeightedMapping{Subject: "$JS.API.CONSUMER.>", Weight: 100})
	token, err := a.sign(c, "")
	return c, token, err
}

// System returns the claims of the account of the servers' own events.
func (a *Authority) System() (*jwt.AccountClaims, string, error) {
	c := jwt.NewAccountClaims(a.system.public)
	c.Name = "system"
	token, err := a.sign(c, "")
	return c, token, err
}

// nodePermissions are all that a node may do. It may create no consumer: that could
// make the server deliver messages to other nodes' subjects.
func nodePermissions() jwt.UserPermissionLimits {
	var p jwt.UserPermissionLimits
	p.NatsLimits = jwt.NatsLimits{Subs: 64, Data: jwt.NoLimit, Payload: maxNodePayload}
	p.Pub.Allow = jwt.StringList{
		wire.NodeFetchSubject("{{name()}}"),
		wire.FetchSubject, // in a cluster; elsewhere it has no answer
		"weir.v1.up.{{name()}}.>",
	}
	p.Sub.Allow = jwt.StringList{
		wire.NodeInbox("{{name()}}") + ">",
		wire.DownPrefix + ">", // of which the account imports what nodes may read: each token here takes half a kilobyte a connection
		"weir.v1.ask.{{name()}}.>",
	}
	p.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: 10 * time.Second}
	p.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeStandard}
	return p
}

// maxNodePayload bounds the messages of nodes, in bytes.
const maxNodePayload = 256 << 10

// user returns the signed claims of a user of the fleet's account, which end at some time; zero: never.
func (a *Authority) user(public, name string, by signer, ends time.Time) (string, error) {
	c := jwt.NewUserClaims(public)
	c.Name = name
	if !ends.IsZero() {
		c.Expires = ends.Unix()
	}
	if by == a.scope {
		c.UserPermissionLimits = jwt.UserPermissionLimits{} // those of the scope
		c.IssuerAccount = a.account.public
	}
	return c.Encode(by)
}

// Own returns credentials for the hub itself, in the nodes' account or in that of the
// servers' events, made anew at each start.
func (a *Authority) Own(system bool) (token, seed string, err error) {
	if system {
		return a.own(a.system)
	}
	return a.own(a.account)
}

// OwnStream returns such credentials in the account of the stream.
func (a *Authority) OwnStream() (token, seed string, err error) { return a.own(a.stream) }

func (a *Authority) own(by signer) (token, seed string, err error) {
	public, seed, err := newUser()
	if err == nil {
		token, err = a.user(public, "weir-hub", by, time.Time{})
	}
	return token, seed, err
}

// ServerName is in the certificates of hubs and sites, for connections within the
// process.
const ServerName = "weir-hub"

// ServerTLS returns the configuration of a server, with a certificate for its names
// and addresses, that requires certificates of clients.
func (a *Authority) ServerTLS(names []string) (*tls.Config, error) {
	return (&identity{a: a, names: names, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}).server()
}

// JoinTLS returns the configuration of a server for hosts that have a token and no certificate. It sends the
// authority's certificate, which tokens pin.
func (a *Authority) JoinTLS(names []string) (*tls.Config, error) {
	return (&identity{a: a, names: names, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, pinned: true}).server()
}

// ClientTLS returns the configuration of the hub's own connections to servers, as of now.
func (a *Authority) ClientTLS() (*tls.Config, error) {
	c, err := a.client().current()
	if err != nil {
		return nil, err
	}
	return c.Clone(), nil
}

func (a *Authority) client() *identity {
	return &identity{a: a, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// Connecting returns the options of the hub's own connections to servers of a name, "" for that in their URL: each is
// made with the certificates of its time.
func (a *Authority) Connecting(server string) ([]nats.Option, error) {
	own := a.client()
	first, err := own.current()
	if err != nil {
		return nil, err
	}
	c := first.Clone()
	c.ServerName = server
	return []nats.Option{nats.Secure(c), nats.ClientTLSConfig(func() (tls.Certificate, error) {
		c, err := own.current()
		if err != nil {
			return tls.Certificate{}, err
		}
		return c.Certificates[0], nil
	}, func() (*x509.CertPool, error) { return a.ca.Load().pool, nil })}, nil
}

// expiry returns until when a certificate in a file is valid that is made now, for some life. A clock that is years
// behind would have it expire, by the clocks of all others, before it is used.
func (a *Authority) expiry(life time.Duration) time.Time {
	from := time.Now()
	if begin := a.ca.Load().issuer().NotBefore; from.Before(begin) {
		from = begin
	}
	return from.Add(life)
}

// Expiry is until when the certificate of a node or site is valid, or the authority's.
type Expiry struct {
	What string // node NAME, site NAME or authority
	At   time.Time
}

// Expiring returns what has expired, or expires soon: of the authority's own certificate, and of those
// of nodes and sites that are not revoked, in the order of time.
func (a *Authority) Expiring(nodes map[string]Member, sites []Site, now time.Time) (all []Expiry) {
	add := func(what string, from, at, revoked time.Time) {
		if revoked.IsZero() && enrollment.ExpiresSoon(from, at, now) {
			all = append(all, Expiry{what, at})
		}
	}
	ca := a.ca.Load().issuer()
	add("authority", ca.NotBefore, ca.NotAfter, time.Time{})
	for name, m := range nodes {
		add("node "+name, m.Issued(), m.Expires, m.Revoked)
	}
	for _, s := range sites {
		add("site "+s.Name, s.Enrolled, s.Expires, s.Revoked)
	}
	slices.SortFunc(all, func(a, b Expiry) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.What, b.What)) })
	return all
}

// certificate makes a certificate for DNS names and addresses, by one of the authority's. It is valid as
// early as that one: the clock of this host may be ahead, or the verifier's behind.
func (i *issuers) certificate(by int, name string, names []string, until time.Time, usage ...x509.ExtKeyUsage) (der, keyText []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if der, err = i.certify(by, &key.PublicKey, name, names, until, usage...); err != nil {
		return nil, nil, err
	}
	keyText, err = keyPEM(key)
	return der, keyText, err
}

// certify is certificate for a key.
func (i *issuers) certify(by int, key *ecdsa.PublicKey, name string, names []string, until time.Time, usage ...x509.ExtKeyUsage) ([]byte, error) {
	about := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: i.all[by].NotBefore, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usage,
	}
	for _, n := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if ip := net.ParseIP(n); ip != nil {
			about.IPAddresses = append(about.IPAddresses, ip)
		} else {
			about.DNSNames = append(about.DNSNames, n)
		}
	}
	return x509.CreateCertificate(rand.Reader, about, i.all[by], key, i.keys[by])
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // cannot fail
	return new(big.Int).SetBytes(b[:])
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

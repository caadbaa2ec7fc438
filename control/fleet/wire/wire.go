// Package wire defines what the hub and the nodes of a fleet say to each other: the
// subjects, and signed messages.
//
// A list has versions, numbered from 1 within an epoch. Each also has a random ID, and a
// delta names those of both its versions: where the history of a list is lost, and goes on
// from an older copy, its numbers come again, its IDs do not. The hub publishes each change
// as a [Delta] from one version to the next, and from time to time a snapshot, in
// chunks, which a [Head] describes. A [Catalog] says which lists there are and which
// version each group of nodes is to have. All are signed with the fleet's key, which
// the broker does not have: it can withhold messages, which nodes report after a
// while, but not forge, replay or roll back.
package wire

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"weir/control/api"
	"weir/control/list"
	"weir/filter/snapshot"
)

// Stream is the JetStream stream that has the lists.
const Stream = "WEIR"

// FetchSubject is the subject of JetStream's Direct Get, which reads the stream. Nodes ask on it
// where a cluster has nothing on [NodeFetchSubject].
const FetchSubject = "$JS.API.DIRECT.GET." + Stream

// NodeFetchSubject returns the subject on which a node asks for a message of the stream, as
// for JetStream's Direct Get. The broker lets no other node ask on it, and so knows who does.
func NodeFetchSubject(node string) string { return fetchPrefix + node }

const fetchPrefix = "weir.v1.fetch."

// NodeOfFetch returns the node of a NodeFetchSubject.
func NodeOfFetch(subject string) string { return strings.TrimPrefix(subject, fetchPrefix) }

// NodeInbox returns the prefix of the subjects on which only that node receives answers.
func NodeInbox(node string) string { return inboxPrefix + node + "." }

const inboxPrefix = "_INBOX."

// NodeOfInbox returns the node of a subject in its inbox, false if it is another subject.
func NodeOfInbox(subject string) (node string, ok bool) {
	rest, ok := strings.CutPrefix(subject, inboxPrefix)
	node, token, whole := strings.Cut(rest, ".")
	return node, ok && whole && node != "" && token != "" && !strings.ContainsAny(subject, "*> \t")
}

// Fetchable reports whether nodes may read the messages of a subject of the stream.
func Fetchable(subject string) bool {
	lists := strings.TrimSuffix(ListsSubjects, ">")
	return (subject == CatalogSubject() || strings.HasPrefix(subject, lists) || IsChunk(subject)) && !strings.ContainsAny(subject, "*> \t")
}

// Fetch asks for a message of the stream: the part of JetStream's Direct Get that nodes need.
type Fetch struct {
	Seq  uint64 `json:"seq,omitempty"`
	Next string `json:"next_by_subj,omitempty"` // the first of a subject, from a sequence number on
	Last string `json:"last_by_subj,omitempty"` // the last of a subject
}

// HubDomain is the JetStream domain of the hub's servers.
const HubDomain = "hub"

// SiteDomain returns the JetStream domain of a site's server.
func SiteDomain(site string) string { return "site-" + site }

// HubInbox is the prefix of the subjects on which the hub receives answers, apart from
// those of nodes.
const HubInbox = "weir.v1.answers"

// MirrorPrefix comes before the subjects on which a site receives the stream.
func MirrorPrefix(site string) string { return "weir.v1.mirror." + site }

// StreamHeader is the header of catalogs that says which stream they are in, and of which
// epoch: another value is another stream, whose sequence numbers begin anew.
const StreamHeader = "Weir-Stream"

// SequenceHeader is the header, set by JetStream, of a message's place in the stream.
const SequenceHeader = "Nats-Sequence"

// AccountSubject returns the subject of the signed claims of the account that nodes are
// in, from which servers of sites know which nodes are revoked.
func AccountSubject() string { return "weir.v1.live.nodes" }

// ChunkSize is the length in bytes of the chunks of a snapshot, but for the last. The
// broker takes up to 1 MiB a message.
const ChunkSize = 512 << 10

// MaxEntries bounds the entries of a list.
const MaxEntries = 200_000_000

// CatalogSubject returns the subject of the catalog.
func CatalogSubject() string { return "weir.v1.live.catalog" }

// HeadSubject returns the subject of a list's heads.
func HeadSubject(list string) string { return "weir.v1.live.lists." + token(list) + ".head" }

// HeadsSubject matches the heads of all lists.
func HeadsSubject() string { return strings.Replace(HeadSubject(""), "..", ".*.", 1) }

// DeltaSubject returns the subject of a list's deltas.
func DeltaSubject(list string) string { return "weir.v1.live.lists." + token(list) + ".delta" }

// ChunkSubject returns the subject of a chunk of a snapshot, from 0.
func ChunkSubject(list string, epoch, version uint64, i int) string {
	return fmt.Sprintf("%s.%d", chunksOf(list, epoch, version), i)
}

func chunksOf(list string, epoch, version uint64) string {
	return fmt.Sprintf("weir.v1.chunks.%s.%d.%d", token(list), epoch, version)
}

// IsChunk reports whether a subject belongs to a chunk.
func IsChunk(subject string) bool { return strings.HasPrefix(subject, chunksPrefix) }

const chunksPrefix = "weir.v1.chunks."

// ChunksSubject matches the chunks of a snapshot.
func ChunksSubject(list string, epoch, version uint64) string {
	return chunksOf(list, epoch, version) + ".*"
}

// ChunksOf matches the chunks of all snapshots of a list.
func ChunksOf(list string) string { return chunksPrefix + token(list) + ".>" }

// PlaceOfChunk returns the version of the subject of a chunk, false if it is another subject.
func PlaceOfChunk(subject string) (p Place, ok bool) {
	parts := strings.Split(strings.TrimPrefix(subject, chunksPrefix), ".")
	if !IsChunk(subject) || len(parts) != 4 {
		return Place{}, false
	}
	epoch, bad := strconv.ParseUint(parts[1], 10, 64)
	version, worse := strconv.ParseUint(parts[2], 10, 64)
	return Place{Epoch: epoch, Version: version}, bad == nil && worse == nil
}

// StreamSubjects are all subjects of the stream.
var StreamSubjects = []string{LiveSubjects, "weir.v1.chunks.>"}

// LiveSubjects are those that are published live, too: all but the chunks, which
// nodes fetch when they need them.
const LiveSubjects = "weir.v1.live.>"

// ListsSubjects match the heads and deltas of all lists.
const ListsSubjects = "weir.v1.live.lists.>"

// DeltasSubject matches the deltas of all lists.
func DeltasSubject() string { return strings.Replace(DeltaSubject(""), "..", ".*.", 1) }

// ListOfDelta returns the list of the subject of a delta, false if it is another
// subject.
func ListOfDelta(subject string) (list string, ok bool) {
	before, after, _ := strings.Cut(DeltasSubject(), "*")
	rest, begins := strings.CutPrefix(subject, before)
	text, ends := strings.CutSuffix(rest, after)
	name, err := hex.DecodeString(text)
	return string(name), begins && ends && err == nil
}

// DownPrefix comes before the subject of a stored message where it is published live.
const DownPrefix = "weir.v1.down."

// StatusSubject returns the subject on which a node reports its status.
func StatusSubject(node string) string { return "weir.v1.up." + node + ".status" }

// AskSubject returns the subject on which a node is asked something.
func AskSubject(node, what string) string { return "weir.v1.ask." + node + "." + what }

// token returns the name of a list as a token of a subject: dots separate tokens.
func token(list string) string { return hex.EncodeToString([]byte(list)) }

// The kinds of signed messages.
const (
	kindCatalog = "catalog"
	kindHead    = "head"
	kindDelta   = "delta"
)

// Place is a version of a list.
type Place = api.Place

// Settings say what a list's entries mean.
type Settings struct {
	Action    string `json:"action"`    // block or allow
	Direction string `json:"direction"` // src, dst or both
	Priority  int    `json:"priority,omitempty"`

	// Where one of these says for which packets the list is, or Trial that it drops none, Action
	// ends with [Limited]. They are as in weir.yaml, joined by commas.
	Trial     bool   `json:"trial,omitempty"`
	Ports     string `json:"ports,omitempty"`
	Protocols string `json:"protocols,omitempty"`
	VLANs     string `json:"vlans,omitempty"`

	// Prefixes that nodes list for the addresses of the list, as in weir.yaml; Prefix6 is for all
	// of them. Nodes of versions that know nothing of that list the addresses alone.
	Prefix6   int       `json:"prefix6,omitempty"`
	Aggregate Aggregate `json:"aggregate,omitzero"`
}

// Aggregate says when the prefix around addresses is listed, too.
type Aggregate struct {
	IPv4 int `json:"ipv4,omitempty"`
	IPv6 int `json:"ipv6,omitempty"`
	At   int `json:"at"`
}

// Limited ends the action of a list that is not for all packets, or on trial. Nodes of versions
// that know nothing of that know no such action, and refuse the list: they would drop all packets
// of its entries, which may lock out whom it is not for.
const Limited = "-limited"

// Release is the version that groups of nodes are to have; the zero Place: what they
// have. See [ListState.For].
type Release struct {
	Groups []string `json:"groups,omitempty"` // none: all nodes
	Place
	ID string `json:"id,omitempty"` // of the version; "": unknown
	// Rehearse makes nodes count what the version would drop in addition to the one
	// that they filter by.
	Rehearse bool `json:"rehearse,omitempty"`
}

// ListState is a list in a catalog.
type ListState struct {
	Name string `json:"name"`
	Settings
	Only     []string  `json:"only,omitempty"` // groups of nodes that have the list; none: all nodes
	Releases []Release `json:"releases"`
}

// Link bounds the bytes a second with which nodes of some groups fetch, each, all lists
// together.
type Link struct {
	Groups  []string `json:"groups"`
	MaxRate int64    `json:"max_rate"`
}

// For returns the version that a node of some groups is to filter by: that of the last
// release that names one of them, or none; and the one to rehearse, the zero Place for
// none. It is false if the node is not to have the list.
func (l ListState) For(groups []string) (want, rehearse Place, ok bool) {
	if !Names(l.Only, groups) {
		return want, rehearse, false
	}
	for _, r := range l.Releases {
		if !Names(r.Groups, groups) {
			continue
		}
		if ok = true; r.Rehearse {
			rehearse = r.Place
		} else {
			want, rehearse = r.Place, Place{}
		}
	}
	return want, rehearse, ok
}

// Names reports whether something that names groups, or none for all nodes, is for a node of some groups.
func Names(named, groups []string) bool {
	return len(named) == 0 || slices.ContainsFunc(named, func(g string) bool { return slices.Contains(groups, g) })
}

// InWave reports whether the version that a node of some groups is to filter by reaches it in a
// wave: other nodes have another one.
func (l ListState) InWave(groups []string) bool {
	want, _, _ := l.For(groups)
	return len(l.Releases) > 0 && l.Releases[0].Place != want
}

// IDOf returns the ID of the version at a place that is released, "" if it is not known.
func (l ListState) IDOf(p Place) string {
	for _, r := range l.Releases {
		if r.Place == p {
			return r.ID
		}
	}
	return ""
}

// Catalog says which lists there are. The hub publishes it anew at intervals, so that
// nodes notice when they are cut off.
type Catalog struct {
	Place              // by the hub's clock, in milliseconds, and always after the last one
	Seal   string      `json:"seal,omitempty"` // [SealPlace]
	Term               // the hub's
	MaxAge int64       `json:"max_age"`          // seconds after which nodes report that they are stale
	Beat   int64       `json:"beat"`             // milliseconds until the next one, at the latest
	Spread int64       `json:"spread,omitempty"` // milliseconds in which the nodes that a change makes report do so
	Lists  []ListState `json:"lists"`
	Links  []Link      `json:"links,omitempty"`
	Report bool        `json:"report,omitempty"` // nodes are to report soon: the hub has just started

	Patterns []Pattern `json:"patterns,omitempty"`
}

// Pattern is a pattern of packets that nodes drop. One that is missing in a later catalog ends at its time: a
// hub that goes on from an older copy of its state ends none before.
type Pattern struct {
	ID       string    `json:"id"`               // random, of the command that has set it
	Groups   []string  `json:"groups,omitempty"` // none: all nodes
	Pattern  string    `json:"pattern"`
	Rate     string    `json:"rate"` // above which its packets are dropped
	Until    time.Time `json:"until"`
	Trial    float64   `json:"trial,omitempty"`    // seconds for which it only counts at first
	Rehearse bool      `json:"rehearse,omitempty"` // it only counts
	Off      bool      `json:"off,omitempty"`      // it ends now
	Reason   string    `json:"reason,omitempty"`
}

// MaxPatterns bounds the patterns of a catalog, those that end included.
const MaxPatterns = 64

// For returns the patterns of a catalog for a node of some groups.
func (c Catalog) For(groups []string) (all []Pattern) {
	for _, p := range c.Patterns {
		if Names(p.Groups, groups) {
			all = append(all, p)
		}
	}
	return all
}

// MaxRate returns the least rate of the links of some groups; 0: no bound.
func (c Catalog) MaxRate(groups []string) (least int64) {
	for _, l := range c.Links {
		if l.MaxRate > 0 && (least == 0 || l.MaxRate < least) && slices.ContainsFunc(l.Groups, func(g string) bool { return slices.Contains(groups, g) }) {
			least = l.MaxRate
		}
	}
	return least
}

// Head describes a snapshot of a list.
type Head struct {
	List string `json:"list"`
	Place
	ID      string    `json:"id,omitempty"`   // of the version; "": unknown
	Seal    string    `json:"seal,omitempty"` // [Version.Sealed]
	Entries int       `json:"entries"`
	Sum     string    `json:"sum"`               // of the entries: [snapshot.Sum]
	Size    int       `json:"size"`              // in bytes, of the snapshot and the expiries after it
	Expires int       `json:"expires,omitempty"` // in bytes, of the expiries
	SHA256  string    `json:"sha256"`
	Issued  time.Time `json:"issued"`

	Past []Ancestor `json:"past,omitempty"` // the latest first

	Signed []byte `json:"-"` // as [OpenHead] has read it; nil: the hub has not signed it
}

// Ancestor is a version of an epoch before, whose changes a list has. By it, a hub that comes back with a copy of
// that epoch knows what has changed since.
type Ancestor struct {
	Place
	ID string `json:"id"`
}

// MaxPast bounds the ancestors that are kept of a list.
const MaxPast = 16

// Chunks returns the number of chunks of the snapshot.
func (h Head) Chunks() int { return (h.Size + ChunkSize - 1) / ChunkSize }

// Delta is a change of a list from one version to another of the same epoch.
type Delta struct {
	List    string           `json:"list"`
	Epoch   uint64           `json:"epoch"`
	From    uint64           `json:"from"`
	To      uint64           `json:"to"`
	FromID  string           `json:"from_id,omitempty"` // "": unknown
	ID      string           `json:"id,omitempty"`      // of the version after the change; "": unknown
	Seal    string           `json:"seal,omitempty"`    // of that: [Version.Sealed]
	Sum     string           `json:"sum"`               // of the entries after the change
	Entries int              `json:"entries"`
	Issued  time.Time        `json:"issued"`
	Expires []Expiry         `json:"expires,omitempty"`
	Add     []snapshot.Group `json:"-"`
	Remove  []snapshot.Group `json:"-"`
}

// Expiry says when an entry expires on the node, whatever becomes of the hub. It
// replaces what was said of the entry before. The version still has the entry then,
// and its checksum counts it, until a delta removes it.
type Expiry struct {
	Entry string    `json:"entry"`
	At    time.Time `json:"at,omitzero"` // the zero time: it no longer expires
}

// Set returns the change as one of a list's contents.
func (d Delta) Set() (list.Delta, error) {
	add, err := list.SetOfGroups(d.Add)
	if err != nil {
		return list.Delta{}, err
	}
	remove, err := list.SetOfGroups(d.Remove)
	return list.Delta{Add: add, Remove: remove}, err
}

// ErrForged means that a message is not signed with the fleet's key, or is another
// kind of message.
var ErrForged = errors.New("the signature does not match")

// seal signs a message.
func seal(key ed25519.PrivateKey, kind string, text []byte) []byte {
	return append(ed25519.Sign(key, signed(kind, text)), text...)
}

// open returns the text of a signed message.
func open(key ed25519.PublicKey, kind string, message []byte) ([]byte, error) {
	if len(message) < ed25519.SignatureSize {
		return nil, fmt.Errorf("%s of %d bytes: %w", kind, len(message), ErrForged)
	}
	text := message[ed25519.SignatureSize:]
	if !ed25519.Verify(key, signed(kind, text), message[:ed25519.SignatureSize]) {
		return nil, fmt.Errorf("%s: %w", kind, ErrForged)
	}
	return text, nil
}

// signed returns the text that a signature covers. The kind keeps a message of one kind from passing
// for one of another.
func signed(kind string, text []byte) []byte {
	sum := sha256.Sum256(text)
	return append([]byte("weir fleet 1 "+kind+"\x00"), sum[:]...)
}

// SealCatalog returns the signed form of a catalog.
func SealCatalog(key ed25519.PrivateKey, c Catalog) ([]byte, error) {
	return sealJSON(key, kindCatalog, c)
}

// OpenCatalog returns a catalog from its signed form.
func OpenCatalog(key ed25519.PublicKey, message []byte) (c Catalog, err error) {
	return c, openJSON(key, kindCatalog, message, &c)
}

// SealHead returns the signed form of a head.
func SealHead(key ed25519.PrivateKey, h Head) ([]byte, error) { return sealJSON(key, kindHead, h) }

// OpenHead returns a head from its signed form.
func OpenHead(key ed25519.PublicKey, message []byte) (h Head, err error) {
	if err := openJSON(key, kindHead, message, &h); err != nil {
		return Head{}, err
	}
	h.Signed = message
	return h, h.Check()
}

// Check returns what cannot be true of a head.
func (h Head) Check() error {
	if h.Size <= 0 || h.Entries < 0 || h.Entries > MaxEntries || h.Expires < 0 || h.Expires > h.Size ||
		h.Expires > maxExpiry*(h.Entries+1) || h.Size-h.Expires > 64*(h.Entries+16) || len(h.Past) > MaxPast {
		return fmt.Errorf("head of list %q: %d entries in %d bytes", h.List, h.Entries, h.Size)
	}
	return nil
}

func sealJSON(key ed25519.PrivateKey, kind string, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return seal(key, kind, text), nil
}

func openJSON(key ed25519.PublicKey, kind string, message []byte, v any) error {
	text, err := open(key, kind, message)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// SealDelta returns the signed form of a delta: the length of its description, the
// description, and the entries added and removed.
func SealDelta(key ed25519.PrivateKey, d Delta) ([]byte, error) {
	about, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	text := binary.AppendUvarint(nil, uint64(len(about)))
	text = append(text, about...)
	for _, groups := range [][]snapshot.Group{d.Add, d.Remove} {
		encoded, err := snapshot.Append(nil, groups)
		if err != nil {
			return nil, err
		}
		text = append(binary.AppendUvarint(text, uint64(len(encoded))), encoded...)
	}
	return seal(key, kindDelta, text), nil
}

// OpenDelta returns a delta from its signed form.
func OpenDelta(key ed25519.PublicKey, message []byte) (d Delta, err error) {
	text, err := open(key, kindDelta, message)
	if err != nil {
		return Delta{}, err
	}
	r := bytes.NewReader(text)
	next := func() []byte {
		n, e := binary.ReadUvarint(r)
		if e != nil || n > uint64(r.Len()) {
			err = errors.New("delta ends early")
			return nil
		}
		at := len(text) - r.Len()
		_, _ = r.Seek(int64(n), 1) // cannot fail
		return text[at : at+int(n)]
	}
	about := next()
	if err == nil {
		err = json.Unmarshal(about, &d)
	}
	for _, groups := range []*[]snapshot.Group{&d.Add, &d.Remove} {
		if encoded := next(); err == nil {
			*groups, err = snapshot.Decode(encoded, MaxEntries)
		}
	}
	if err == nil && (r.Len() > 0 || d.To <= d.From) {
		err = fmt.Errorf("delta of list %q from %d to %d, with %d bytes after its end", d.List, d.From, d.To, r.Len())
	}
	if err != nil {
		return Delta{}, err
	}
	return d, nil
}

// SealSnapshot returns the chunks of a set and of its entries that expire, and the signed
// head. The head's place, list and time are given.
func SealSnapshot(key ed25519.PrivateKey, h Head, groups []snapshot.Group, expires []Expiry) (chunks [][]byte, head []byte, err error) {
	h, whole, err := NewSnapshot(h, groups, expires)
	if err != nil {
		return nil, nil, err
	}
	head, err = SealHead(key, h)
	return slices.Collect(slices.Chunk(whole, ChunkSize)), head, err
}

// NewSnapshot returns the snapshot of a set with its expiries, and its head.
// The head's place, list and time are given.
func NewSnapshot(h Head, groups []snapshot.Group, expires []Expiry) (Head, []byte, error) {
	whole, err := snapshot.Append(nil, groups)
	if err != nil {
		return Head{}, nil, err
	}
	h.Expires = 0
	if len(expires) > 0 {
		text, err := json.Marshal(expires)
		if err != nil {
			return Head{}, nil, err
		}
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return Head{}, nil, err
		}
		defer e.Close()
		before := len(whole)
		whole = e.EncodeAll(text, whole)
		h.Expires = len(whole) - before
	}
	sum := sha256.Sum256(whole)
	h.Size, h.SHA256, h.Sum, h.Entries = len(whole), hex.EncodeToString(sum[:]), snapshot.Of(groups).String(), 0
	for _, g := range groups {
		h.Entries += g.Len()
	}
	return h, whole, nil
}

// OpenSnapshot returns the set of a head, and what expires in it, from its chunks,
// joined.
func OpenSnapshot(h Head, whole []byte) (*list.Set, []Expiry, error) {
	if sum := sha256.Sum256(whole); len(whole) != h.Size || hex.EncodeToString(sum[:]) != h.SHA256 {
		return nil, nil, fmt.Errorf("snapshot %v of list %q: %w", h.Place, h.List, ErrForged)
	}
	encoded := whole[:h.Size-h.Expires]
	groups, err := snapshot.Decode(encoded, h.Entries)
	if err != nil {
		return nil, nil, err
	}
	if sum := snapshot.Of(groups).String(); sum != h.Sum {
		return nil, nil, fmt.Errorf("snapshot %v of list %q: its checksum is %s, want %s", h.Place, h.List, sum, h.Sum)
	}
	expires, err := openExpiries(whole[len(encoded):], h.Entries)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %v of list %q: expiries: %w", h.Place, h.List, err)
	}
	set, err := list.SetOfGroups(groups)
	return set, expires, err
}

// maxExpiry is the maximum length of an [Expiry] in JSON: of a flow between IPv6
// prefixes.
const maxExpiry = 256

func openExpiries(encoded []byte, entries int) (all []Expiry, err error) {
	if len(encoded) == 0 {
		return nil, nil
	}
	most := uint64(entries+1) * maxExpiry
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(max(most, 1<<16)))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	text, err := d.DecodeAll(encoded, nil)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

package store

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/control/durable"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/snapshot"
)

// MaxDelta is the length of a delta from which on nodes are better off with a
// snapshot: brokers take no message of 1 MiB.
const MaxDelta = 768 << 10

// maxLog bounds the log of a list, in bytes and in deltas: beyond that and half of its
// base, it gets a new base.
const (
	maxLog    = 1 << 20
	maxDeltas = 1000
)

// List is a list's history, from its base on.
type List struct {
	name string
	dir  string
	key  ed25519.PrivateKey

	place    wire.Place
	id       string // of that version; "": unknown
	contents *list.Set
	expires  map[key.Key]time.Time
	sum      snapshot.Sum

	base   wire.Head
	log    *durable.File
	deltas []record

	// stray is the place of a base that could not be written, but may be on disk, where it
	// would end the log. If it is of the last version, it is written again before the next
	// one; else the next version comes after it, in a base.
	stray wire.Place

	// opened is the version with which the store was opened, or the epoch began since then. past has those of
	// epochs before, and taken those that were taken in for the next one.
	opened wire.Ancestor
	past   []wire.Ancestor
	taken  []wire.Ancestor

	known Versions
}

// Versions has the versions of a list since its base. They are safe for concurrent use.
type Versions struct {
	mu    sync.Mutex
	epoch uint64
	last  uint64
	all   map[uint64]wire.Version
}

// note notes a version: the one after those before, or a base.
func (k *Versions) note(v wire.Version, base bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if base && (k.all == nil || v.Epoch != k.epoch) {
		k.all = make(map[uint64]wire.Version)
	} else if base {
		maps.DeleteFunc(k.all, func(at uint64, _ wire.Version) bool { return at < v.Version })
	}
	k.epoch, k.last = v.Epoch, v.Version
	k.all[v.Version] = v
}

// Verdict says how a version stands to those of a list.
type Verdict int

// The verdicts.
const (
	Same    Verdict = iota // it is one of them
	Earlier                // it is before those that are known
	Later                  // the list had no such version yet
	Another                // the list had another one at its place
	Damaged                // it is one of them, but with other entries
)

// Compare returns how a version stands to those of the list. It is safe for concurrent use.
func (l *List) Compare(v wire.Version) Verdict { return l.known.Compare(v) }

// Epoch returns the epoch of the last version. It is safe for concurrent use.
func (l *List) Epoch() uint64 { return l.known.Epoch() }

// Versions returns a copy of the versions since the base.
func (l *List) Versions() *Versions {
	k := &l.known
	k.mu.Lock()
	defer k.mu.Unlock()
	return &Versions{epoch: k.epoch, last: k.last, all: maps.Clone(k.all)}
}

// Epoch returns the epoch of the versions.
func (k *Versions) Epoch() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.epoch
}

// Compare returns how a version stands to these.
func (k *Versions) Compare(v wire.Version) Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v.Epoch > k.epoch || v.Epoch == k.epoch && v.Version > k.last {
		return Later
	}
	own, ok := k.all[v.Version]
	switch {
	case v.Epoch < k.epoch || !ok:
		return Earlier
	case v.ID == own.ID && v.ID != "" && v.Sum != own.Sum:
		return Damaged
	case v.ID != own.ID && v.ID != "" && own.ID != "", v.Sum != own.Sum:
		return Another
	}
	return Same
}

// ID returns that of a version, "" if it is not known. It is safe for concurrent use.
func (l *List) ID(p wire.Place) string {
	k := &l.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.Epoch != k.epoch {
		return ""
	}
	return k.all[p.Version].ID
}

// version returns the last version.
func (l *List) version() wire.Version {
	return wire.Version{Place: l.place, ID: l.id, Sum: l.sum.String()}
}

// record is where a delta is in the log.
type record struct {
	to     uint64
	at     int64
	length int
}

// Place returns the last version.
func (l *List) Place() wire.Place { return l.place }

// Contents returns the entries of the last version.
func (l *List) Contents() *list.Set { return l.contents }

// Expires returns when entries of the last version expire.
func (l *List) Expires() map[key.Key]time.Time { return l.expires }

// Base returns the description of the base.
func (l *List) Base() wire.Head { return l.base }

// Change is the contents of a next version.
type Change struct {
	Contents *list.Set
	Expires  map[key.Key]time.Time // of those of its entries that do

	// Stepwise makes a change that is too long for a delta several versions, rather than
	// a new base: the versions since the base remain known.
	Stepwise bool
}

// Commit makes a version of new contents, durably, unless they equal the last
// one's. When it fails, there is no such version.
func (l *List) Commit(c Change) (changed bool, err error) {
	diff := c.Contents.Diff(l.contents)
	expires := expiries(l.expires, c.Expires)
	if diff.Len() == 0 && len(expires) == 0 {
		return false, nil
	}
	d := wire.Delta{
		List: l.name, Epoch: l.place.Epoch, From: l.place.Version, To: l.place.Version + 1, FromID: l.id, ID: wire.NewID(),
		Entries: c.Contents.Len(), Issued: time.Now().UTC(), Expires: expires,
		Add: diff.Add.Groups(), Remove: diff.Remove.Groups(),
	}
	sum := l.sum
	sum.Add(d.Add)
	sum.Remove(d.Remove)
	d.Sum = sum.String()
	switch {
	case l.stray == l.place:
		if err := l.rebase(l.place, l.id); err != nil {
			return false, err
		}
	case l.stray.Version != 0:
		return l.commitBase(wire.Place{Epoch: l.stray.Epoch, Version: l.stray.Version + 1}, c)
	}
	next := wire.Place{Epoch: d.Epoch, Version: d.To}
	d.Seal = wire.Version{Place: next, ID: d.ID, Sum: d.Sum}.Sealed(l.key, l.name)
	message, err := wire.SealDelta(l.key, d)
	if err != nil {
		return false, err
	}
	if len(message) > MaxDelta && c.Stepwise && diff.Len() > 1 {
		mid, _ := l.contents.Apply(half(diff))
		if _, err := l.Commit(Change{Contents: mid, Expires: l.expires, Stepwise: true}); err != nil {
			return false, err
		}
		return l.Commit(c)
	}
	if len(message) > MaxDelta {
		return l.commitBase(next, c)
	}
	if err := l.append(message, d.To); err != nil {
		return false, fmt.Errorf("list %s: version %v is not recorded: %w", l.name, next, err)
	}
	l.place, l.id, l.contents, l.expires, l.sum = next, d.ID, c.Contents, c.Expires, sum
	l.known.note(l.version(), false)
	return true, nil
}

// commitBase makes a version of contents that is a base.
func (l *List) commitBase(next wire.Place, c Change) (changed bool, err error) {
	contents, expires := l.contents, l.expires
	l.contents, l.expires = c.Contents, c.Expires
	if err := l.rebase(next, wire.NewID()); err != nil {
		l.contents, l.expires = contents, expires
		return false, err
	}
	return true, nil
}

// half returns about half of a change of more than one entry.
func half(d list.Delta) list.Delta {
	n := d.Len() / 2
	take := func(s *list.Set) *list.Set {
		var some []snapshot.Group
		for _, g := range s.Groups() {
			k := min(n, g.Len())
			if n -= k; k > 0 {
				g.Keys = g.Keys[:k*g.Width()]
				some = append(some, g)
			}
		}
		part, err := list.SetOfGroups(some)
		if err != nil {
			panic(err) // Groups has made them
		}
		return part
	}
	return list.Delta{Add: take(d.Add), Remove: take(d.Remove)}
}

// At returns what the list had at a version, from the base on.
func (l *List) At(place wire.Place) (Change, error) {
	if place.Epoch != l.base.Epoch || place.Before(l.base.Place) || l.place.Before(place) {
		return Change{}, fmt.Errorf("list %s: version %v is not known, those from %v to %v are", l.name, place, l.base.Place, l.place)
	}
	h, whole, err := readBase(l.key, l.basePath(l.base.Version))
	if err != nil {
		return Change{}, err
	}
	then, err := Begin(l.key, h, whole)
	if err != nil {
		return Change{}, err
	}
	err = l.Deltas(l.base.Version, func(to uint64, message []byte) error {
		if to > place.Version {
			return nil
		}
		return then.Follow(message)
	})
	return Change{Contents: then.contents, Expires: then.expires}, err
}

// expiries returns what has changed.
func expiries(before, after map[key.Key]time.Time) (all []wire.Expiry) {
	for k, at := range after {
		if !before[k].Equal(at) {
			all = append(all, wire.Expiry{Entry: k.String(), At: at})
		}
	}
	for k := range before {
		if _, still := after[k]; !still {
			all = append(all, wire.Expiry{Entry: k.String()})
		}
	}
	ordered.By(all, func(a, b wire.Expiry) int { return strings.Compare(a.Entry, b.Entry) })
	return all
}

// Deltas calls fn with the signed deltas after a version, in order.
func (l *List) Deltas(after uint64, fn func(to uint64, message []byte) error) error {
	for _, r := range l.deltas {
		if r.to <= after {
			continue
		}
		message := make([]byte, r.length)
		if _, err := l.log.ReadAt(message, r.at); err != nil {
			return err
		}
		if err := fn(r.to, message); err != nil {
			return err
		}
	}
	return nil
}

// Bulky reports whether the log is large enough for a new base.
func (l *List) Bulky() bool {
	return len(l.deltas) >= maxDeltas || l.log.Size() > max(maxLog, int64(l.base.Size)/2)
}

// Rebase makes the last version the base.
func (l *List) Rebase() error {
	if l.place == l.base.Place || l.place.Before(l.stray) { // then the next version will be one
		return nil
	}
	return l.rebase(l.place, l.id)
}

// Snapshot returns the base's chunks and its signed head.
func (l *List) Snapshot() (chunks [][]byte, head []byte, err error) {
	h, whole, err := readBase(l.key, l.basePath(l.base.Version))
	if err != nil {
		return nil, nil, err
	}
	if h.Place != l.base.Place || h.SHA256 != l.base.SHA256 {
		return nil, nil, fmt.Errorf("%s: it has changed", l.basePath(l.base.Version))
	}
	return slices.Collect(slices.Chunk(whole, wire.ChunkSize)), h.Signed, nil
}

const (
	basePrefix = "base-"
	logPrefix  = "log-"
)

func (l *List) basePath(version uint64) string {
	return filepath.Join(l.dir, basePrefix+strconv.FormatUint(version, 10))
}

func (l *List) logPath(place wire.Place) string {
	return filepath.Join(l.dir, logPrefix+strings.Replace(place.String(), ".", "-", 1))
}

// reset makes the list empty.
func (l *List) reset() {
	l.place, l.id, l.contents, l.expires, l.sum = wire.Place{}, "", nil, nil, snapshot.Sum{}
	l.base, l.log, l.deltas, l.stray = wire.Head{}, nil, nil, wire.Place{}
}

// rebase makes what the list has the base, as a version.
func (l *List) rebase(place wire.Place, id string) error {
	if err := l.writeBase(place, id); err != nil {
		return fmt.Errorf("list %s: version %v is not recorded: %w", l.name, place, err)
	}
	return nil
}

// enter has the list go on in an epoch, with its contents, unless it does already.
func (l *List) enter(epoch uint64) (entered bool, err error) {
	if l.place.Epoch >= epoch {
		return false, nil
	}
	first := wire.Place{Epoch: epoch, Version: 1}
	if first.Before(l.stray) { // no other base may come after it
		first = l.stray
	}
	before := l.past
	if l.place.Version > 0 {
		own := []wire.Ancestor{l.opened, l.last()}
		if l.taken != nil { // what l has of its own is of this start
			own = own[:1]
		}
		if slices.ContainsFunc(l.taken, func(a wire.Ancestor) bool { return a.Epoch == l.opened.Epoch && !a.Before(l.opened.Place) }) {
			own = nil // what was taken goes on from there
		}
		l.past = joined(own, l.taken, l.past)
	}
	if err := l.rebase(first, wire.NewID()); err != nil {
		l.past = before
		return false, err
	}
	l.opened, l.taken = l.last(), nil
	return true, nil
}

// joined returns ancestors, each once, the latest ones.
func joined(some ...[]wire.Ancestor) []wire.Ancestor {
	all := slices.DeleteFunc(slices.Concat(some...), func(a wire.Ancestor) bool { return a.Version == 0 || a.ID == "" })
	slices.SortFunc(all, func(a, b wire.Ancestor) int {
		return cmp.Or(cmp.Compare(b.Epoch, a.Epoch), cmp.Compare(b.Version, a.Version), strings.Compare(a.ID, b.ID))
	})
	all = slices.Compact(all)
	return all[:min(len(all), wire.MaxPast)]
}

// Since returns the version of l since which the changes of theirs are missing in it: another history of the same
// list, which nodes have. false: that cannot be said.
func (l *List) Since(theirs *List) (wire.Place, bool) {
	same := func(v uint64) bool { // in the same epoch
		at := wire.Place{Epoch: l.place.Epoch, Version: v}
		id := l.ID(at)
		return id != "" && id == theirs.ID(at)
	}
	switch {
	case theirs.place.Epoch == l.place.Epoch:
		for v := min(l.place.Version, theirs.place.Version); v >= max(l.base.Version, theirs.base.Version); v-- {
			if same(v) {
				return wire.Place{Epoch: l.place.Epoch, Version: v}, true
			}
		}
		return l.opened.Place, l.opened.Place.Before(theirs.base.Place)
	case theirs.place.Epoch < l.place.Epoch: // what l has not, if it began empty
		return l.opened.Place, len(l.past) == 0
	}
	var since wire.Place
	for _, a := range theirs.past {
		if a.Epoch == l.place.Epoch && l.ID(a.Place) == a.ID && since.Before(a.Place) {
			since = a.Place
		}
	}
	// They have all that l was opened with where an ancestor is later than that, or those of l's time are no more named.
	// The versions that commands have made of l since are in no other history, and do not count.
	later := slices.ContainsFunc(theirs.past, func(a wire.Ancestor) bool { return a.Epoch == l.place.Epoch && l.opened.Before(a.Place) }) ||
		len(theirs.past) == wire.MaxPast && l.place.Epoch < theirs.past[wire.MaxPast-1].Epoch
	if since == (wire.Place{}) && later {
		since = l.opened.Place
	}
	return since, since != wire.Place{}
}

// Missing returns the changes that lead from a version of l to theirs, but for entries that have changed in l since it
// was opened: those changes are later.
func (l *List) Missing(since wire.Place, theirs *List) (add map[key.Key]time.Time, remove []key.Key, err error) {
	base, err := l.At(since)
	if err != nil {
		return nil, nil, err
	}
	opened := base
	if since != l.opened.Place {
		if opened, err = l.At(l.opened.Place); err != nil {
			return nil, nil, err
		}
	}
	own := func(k key.Key) bool {
		return l.contents.Has(k) != opened.Contents.Has(k) || !l.expires[k].Equal(opened.Expires[k])
	}
	diff := theirs.contents.Diff(base.Contents)
	for k := range diff.Remove.All() {
		if !own(k) {
			remove = append(remove, k)
		}
	}
	add = make(map[key.Key]time.Time)
	for k := range diff.Add.All() {
		if !own(k) {
			add[k] = theirs.expires[k]
		}
	}
	for _, e := range expiries(base.Expires, theirs.expires) {
		if k, err := parseKey(e.Entry); err == nil && theirs.contents.Has(k) && !own(k) {
			add[k] = theirs.expires[k]
		}
	}
	return add, remove, nil
}

// Took notes that l has the changes of theirs: the next epoch has the ancestors of both.
func (l *List) Took(theirs *List) { l.taken = joined([]wire.Ancestor{theirs.last()}, theirs.past) }

func (l *List) writeBase(place wire.Place, id string) error {
	groups := l.contents.Groups()
	sum := snapshot.Of(groups)
	seal := wire.Version{Place: place, ID: id, Sum: sum.String()}.Sealed(l.key, l.name)
	chunks, head, err := wire.SealSnapshot(l.key, wire.Head{List: l.name, Place: place, ID: id, Seal: seal, Issued: time.Now().UTC(), Past: l.past}, groups, expiries(nil, l.expires))
	if err != nil {
		return err
	}
	h, err := wire.OpenHead(l.key.Public().(ed25519.PublicKey), head)
	if err != nil {
		return err
	}
	// The log first: a base needs one.
	log, err := durable.Create(l.logPath(place))
	if err != nil {
		return err
	}
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(head)))
	// One name for all bases of a version; the old base stays until the new one is whole.
	path, before := l.basePath(place.Version), l.stray
	l.stray = place
	if err := durable.WriteFile(path, append([][]byte{length[:], head}, chunks...)...); err != nil {
		_, missing := os.Lstat(path)
		if place.Epoch != l.place.Epoch || !errors.Is(missing, fs.ErrNotExist) {
			return errors.Join(err, log.Close())
		}
		// As on a full disk: the log that there is goes on. An epoch never does.
		log.Discard()
		l.stray = before
		return err
	}
	l.close()
	l.place, l.id, l.base, l.log, l.deltas, l.stray = place, id, h, log, nil, wire.Place{}
	l.sum = sum
	l.known.note(l.version(), true)
	l.tidy()
	return nil
}

// tidy removes bases and logs that are superseded.
func (l *List) tidy() {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return // the next one may
	}
	for _, f := range files {
		path := filepath.Join(l.dir, f.Name())
		if path != l.basePath(l.base.Version) && path != l.logPath(l.base.Place) {
			_ = os.Remove(path)
		}
	}
}

// readBase reads a base and verifies it.
func readBase(key ed25519.PrivateKey, path string) (h wire.Head, whole []byte, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return h, nil, err
	}
	if len(text) < 4 || int(binary.BigEndian.Uint32(text)) > len(text)-4 {
		return h, nil, fmt.Errorf("%s: ends early", path)
	}
	n := 4 + int(binary.BigEndian.Uint32(text))
	if h, err = wire.OpenHead(key.Public().(ed25519.PublicKey), text[4:n]); err != nil {
		return h, nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, text[n:], nil
}

// open reads the newest base and its log. It fails with [fs.ErrNotExist] where there
// is no base.
func (l *List) open() error {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var newest wire.Head
	var whole []byte
	bases := 0
	for _, f := range files {
		number, ok := strings.CutPrefix(f.Name(), basePrefix)
		if _, err := strconv.ParseUint(number, 10, 64); !ok || err != nil {
			continue
		}
		bases++
		h, rest, err := readBase(l.key, filepath.Join(l.dir, f.Name()))
		if err != nil {
			return err
		}
		if newest.Place.Before(h.Place) {
			newest, whole = h, rest
		}
	}
	if bases == 0 {
		return fs.ErrNotExist
	}
	if newest.List != l.name {
		return fmt.Errorf("it is of list %q", newest.List)
	}
	if err := l.begin(newest, whole); err != nil {
		return err
	}
	if l.log, err = durable.Open(l.logPath(newest.Place), os.O_CREATE); err != nil {
		return err
	}
	if err := l.replay(); err != nil {
		return err
	}
	l.opened = l.last()
	return nil
}

// Begin returns a list with a base, in memory alone: of its methods, those that read it, and Follow, can be called.
func Begin(key ed25519.PrivateKey, base wire.Head, whole []byte) (*List, error) {
	l := &List{name: base.List, key: key}
	return l, l.begin(base, whole)
}

func (l *List) begin(base wire.Head, whole []byte) error {
	set, expires, err := wire.OpenSnapshot(base, whole)
	if err != nil {
		return err
	}
	l.base, l.place, l.id, l.contents, l.past = base, base.Place, base.ID, set, base.Past
	l.sum = snapshot.Of(set.Groups())
	l.known.note(l.version(), true)
	l.expires, err = expiring(nil, expires)
	return err
}

// last returns the last version.
func (l *List) last() wire.Ancestor { return wire.Ancestor{Place: l.place, ID: l.id} }

// expiring returns when entries expire after a change.
func expiring(before map[key.Key]time.Time, changes []wire.Expiry) (map[key.Key]time.Time, error) {
	after := maps.Clone(before)
	if after == nil {
		after = make(map[key.Key]time.Time)
	}
	for _, c := range changes {
		k, err := parseKey(c.Entry)
		if err != nil {
			return nil, err
		}
		if c.At.IsZero() {
			delete(after, k)
		} else {
			after[k] = c.At
		}
	}
	return after, nil
}

// parseKey is the inverse of [key.Key.String].
func parseKey(text string) (key.Key, error) {
	e, err := listfile.ParseEntry(text)
	if err != nil {
		return key.Key{}, fmt.Errorf("%q: %w", text, err)
	}
	for k := range e.Set().All() {
		return k, nil
	}
	return key.Key{}, fmt.Errorf("%q: no entry", text)
}

// A frame is the length of a delta, a checksum of it, and the delta.
const frameLen = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// replay applies the deltas of the log, up to its end or a torn one.
func (l *List) replay() error {
	text, err := os.ReadFile(l.log.Path())
	if err != nil {
		return err
	}
	at := 0
	for len(text)-at >= frameLen {
		n := int(binary.BigEndian.Uint32(text[at:]))
		if n == 0 || n > len(text)-at-frameLen { // a power cut may leave zeros
			break
		}
		message := text[at+frameLen : at+frameLen+n]
		if crc32.Checksum(message, castagnoli) != binary.BigEndian.Uint32(text[at+4:]) {
			break
		}
		if err := l.Follow(message); err != nil {
			return fmt.Errorf("%s: offset %d: %w", l.log.Path(), at, err)
		}
		l.deltas = append(l.deltas, record{l.place.Version, int64(at + frameLen), n})
		at += frameLen + n
	}
	if rest := text[at:]; len(rest) > frameLen+MaxDelta || intact(rest) {
		return fmt.Errorf("%s: offset %d: damaged before its end", l.log.Path(), at)
	}
	return l.log.Cut(int64(at))
}

// intact reports whether a whole frame is anywhere after the first byte: then the
// first one is not torn but damaged.
func intact(rest []byte) bool {
	for i := 1; i+frameLen < len(rest); i++ {
		n := int(binary.BigEndian.Uint32(rest[i:]))
		if n > 0 && n <= len(rest)-i-frameLen &&
			crc32.Checksum(rest[i+frameLen:i+frameLen+n], castagnoli) == binary.BigEndian.Uint32(rest[i+4:]) {
			return true
		}
	}
	return false
}

// Follow applies a delta, in memory.
func (l *List) Follow(message []byte) error {
	d, err := wire.OpenDelta(l.key.Public().(ed25519.PublicKey), message)
	if err != nil {
		return err
	}
	if d.List != l.name || d.Epoch != l.place.Epoch || d.From != l.place.Version || d.FromID != "" && l.id != "" && d.FromID != l.id {
		return fmt.Errorf("a delta of list %s from %d.%d %s, where one from %v %s should be", d.List, d.Epoch, d.From, d.FromID, l.place, l.id)
	}
	change, err := d.Set()
	if err != nil {
		return err
	}
	l.contents, _ = l.contents.Apply(change)
	l.sum.Add(d.Add)
	l.sum.Remove(d.Remove)
	if l.sum.String() != d.Sum || l.contents.Len() != d.Entries {
		return errors.New("the entries are not those that the delta describes")
	}
	if l.expires, err = expiring(l.expires, d.Expires); err != nil {
		return err
	}
	l.place.Version, l.id = d.To, d.ID
	l.known.note(l.version(), false)
	return nil
}

// append appends a delta to the log, durably.
func (l *List) append(message []byte, to uint64) error {
	frame := make([]byte, frameLen, frameLen+len(message))
	binary.BigEndian.PutUint32(frame, uint32(len(message)))
	binary.BigEndian.PutUint32(frame[4:], crc32.Checksum(message, castagnoli))
	at := l.log.Size() + frameLen
	if err := l.log.Append(append(frame, message...)); err != nil {
		return err
	}
	l.deltas = append(l.deltas, record{to, at, len(message)})
	return nil
}

func (l *List) close() {
	if l.log != nil {
		l.log.Close()
		l.log = nil
	}
}

// Saved returns a list as a node has saved it, in memory alone, and whether the hub has signed all of it. A node
// writes a snapshot of its own where a file has become long.
func Saved(key ed25519.PrivateKey, name string, r io.Reader) (l *List, signed bool, err error) {
	h, err := wire.ReadSavedHead(r)
	if err != nil {
		return nil, false, err
	}
	if signed = h.Signed != nil; signed {
		h, err = wire.OpenHead(key.Public().(ed25519.PublicKey), h.Signed)
	} else {
		err = h.Check()
	}
	if err == nil && h.List != name {
		err = fmt.Errorf("it is of list %q", h.List)
	}
	if err != nil {
		return nil, false, err
	}
	var whole bytes.Buffer
	if _, err := io.CopyN(&whole, r, int64(h.Size)); err != nil {
		return nil, false, err
	}
	if l, err = Begin(key, h, whole.Bytes()); err != nil {
		return nil, false, err
	}
	for {
		message, err := wire.ReadSavedDelta(r)
		if err != nil || l.Follow(message) != nil {
			return l, signed, nil // the end, or it is cut off
		}
	}
}

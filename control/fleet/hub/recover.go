package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list/listfile"
	"weir/filter/key"
)

const (
	// recoverTime bounds the wait for reports before changes are recovered: the node that has most may be the
	// last one, and one whose connection outlasts the hub, as with a cluster, does not report out of turn.
	recoverTime = wire.StatusInterval + 2*time.Second

	// maxSaved bounds the file of a list that is fetched from a node, and savedTime how long that takes. askAgain is
	// for how long nodes are asked again: once the next epoch has begun, they have nothing of before.
	maxSaved  = 32 << 20
	savedTime = 20 * time.Second
	askAgain  = 10 * time.Second
)

// recovered are changes of lists that the hub's state had lost, and from which nodes they came.
type recovered struct {
	changes int
	nodes   []string
	lost    bool // others were listed
}

func (r recovered) String() string {
	text := "Changes by commands"
	if r.changes > 0 {
		text = fmt.Sprintf("Of changes by commands, %d were taken back from what the keys had signed for %s, and the audit has them. Others", r.changes, named(r.nodes))
	}
	text += " that no node has are lost: make them again"
	if r.lost {
		text += ", as those that weir fleet lost lists"
	}
	return text
}

// recoverLists takes in the changes of lists without feeds that nodes have, as the hub has signed them, and its
// state has not, and lists those that cannot be taken in.
func (p *publisher) recoverLists(ctx context.Context) (r recovered, err error) {
	within, cancel := context.WithTimeout(ctx, recoverTime)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for within.Err() == nil && !(p.nodes.awaitedHeard() && p.asker.connection() != nil) {
		select {
		case <-look.C:
		case <-within.Done():
		}
	}
	again, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	for _, name := range p.lists.names() {
		if err := p.recoverList(ctx, again, name, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// recoverList takes in the changes of a list. Until again ends, it asks again nodes that do not answer.
func (p *publisher) recoverList(ctx, again context.Context, name string, r *recovered) error {
	history := p.lists.history(name)
	if history == nil {
		return nil // a reload has removed it
	}
	key, new := p.authority.PublicKey(), p.store.IsNew() && p.store.First() > 0
	nodes := p.nodes.having(name, func(v wire.Version, seal string) bool {
		verdict := history.Compare(v)
		return (verdict == store.Later || verdict == store.Another || new && verdict == store.Earlier && v.Version > 0) && v.Proved(key, name, seal)
	})
	if len(nodes) == 0 {
		return nil
	}
	return p.recoverFrom(ctx, again, name, nodes, r)
}

// recoverFrom takes in the changes of a list that nodes have.
func (p *publisher) recoverFrom(ctx, again context.Context, name string, nodes []having, r *recovered) error {
	lost := api.LostChanges{Time: time.Now(), List: name, Node: nodes[0].node, Version: nodes[0].version.Place}
	theirs, signed := p.latest(ctx, again, nodes, &lost)
	if theirs != nil {
		p.before.add(name, theirs.Versions())
	} else {
		p.before.say(name, nodes)
	}
	var changes []journal.Change
	if err := p.loop.Do(ctx, func() error {
		l, err := p.lists.byName.Find(name)
		if err != nil || theirs == nil {
			return nil // a reload has removed it, or nothing can be read
		}
		changes, err = p.takeBack(l, theirs, signed, &lost)
		return err
	}); err != nil {
		return err
	}
	switch {
	case lost.Why != "":
		r.lost = true
		lost.Added, lost.Removed = texts(changes, false), texts(changes, true)
		p.listed.add(lost)
	case len(changes) > 0:
		p.recordBack(lost.Node, name, changes)
		if r.changes += len(changes); !slices.Contains(r.nodes, lost.Node) {
			r.nodes = append(r.nodes, lost.Node)
		}
	}
	return nil
}

// latest returns the latest version of a list that the nodes have saved, and whether the hub has signed all of
// it: nil, if none can be read. It says in lost from which node it is, or why there is none.
func (p *publisher) latest(ctx, again context.Context, nodes []having, lost *api.LostChanges) (theirs *store.List, signed bool) {
	for {
		var silent []having
		for _, n := range nodes {
			l, ok, err := p.savedBy(ctx, n.node, lost.List)
			if err == nil && n.version.Epoch < p.store.Used().Epoch && n.version.Epoch < l.Place().Epoch {
				err = fmt.Errorf("it has gone on to version %v", l.Place())
			}
			switch {
			case err != nil:
				if silent = append(silent, n); theirs == nil {
					lost.Why = "what the node has saved cannot be read: " + err.Error()
				}
			case theirs == nil || theirs.Place().Before(l.Place()) || ok && !signed && theirs.Place() == l.Place():
				theirs, signed, lost.Node, lost.Why = l, ok, n.node, ""
			}
		}
		nodes = slices.DeleteFunc(silent, func(n having) bool { return signed && !theirs.Place().Before(n.version.Place) })
		if len(nodes) == 0 {
			return theirs, signed
		}
		select {
		case <-again.Done():
			return theirs, signed
		case <-time.After(retryInterval):
		}
	}
}

// takeBack makes the changes to a list that a node's version has and this one has not. If they cannot be made,
// it returns them, and says why in lost. In the loop.
func (p *publisher) takeBack(l *managed, theirs *store.List, signed bool, lost *api.LostChanges) ([]journal.Change, error) {
	feeds := l.feed != nil || l.released != nil
	lost.Version = theirs.Place()
	since, ok := l.history.Since(theirs)
	late := !ok && lost.Version.Epoch < l.history.Place().Epoch
	switch {
	case feeds:
		lost.Why = "a feed changes the list, too: what it does not have, commands may have added"
	case !signed:
		lost.Why = "the node has a snapshot of its own, which this hub has not signed"
	case late:
		lost.Why = "the node has reported it when this hub had begun another epoch"
	case !ok:
		lost.Why = "it is not known what this hub's state and the node's version had in common"
	}
	if !ok { // all that is different
		since = l.history.Place()
	}
	add, remove, err := l.history.Missing(since, theirs)
	if err != nil {
		lost.Why = err.Error()
		return nil, nil
	}
	if feeds {
		remove = nil
	}
	changes := changesOf(l, lost.Node, add, remove)
	switch {
	case len(changes) == 0:
		if lost.Why = ""; !late {
			l.history.Took(theirs)
		}
		return nil, nil
	case lost.Why != "":
		return changes, nil
	}
	if err := l.journal.Apply(changes); err != nil {
		return changes, err
	}
	l.history.Took(theirs)
	return changes, p.releases.commit(l)
}

// before has the versions of lists in epochs before this one, which this start of the hub had or has taken from nodes.
// It is safe for concurrent use.
type before struct {
	mu   sync.Mutex
	all  map[string][]*store.Versions // by list
	said map[sealed]bool              // others, which are listed
	late map[string]bool              // lists of which a node has reported another
}

// sealed is a version of a list.
type sealed struct {
	list string
	wire.Version
}

func newBefore() *before {
	return &before{all: make(map[string][]*store.Versions), said: make(map[sealed]bool), late: make(map[string]bool)}
}

func (b *before) add(list string, v *store.Versions) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[list] = append(b.all[list], v)
}

// lacks reports whether a version is of an epoch that has ended in this start of the hub, and of no known history.
func (b *before) lacks(list string, v wire.Version) (lacks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.all[list] {
		switch verdict := of.Compare(v); {
		case v.Epoch < of.Epoch():
		case verdict == store.Later || verdict == store.Another:
			lacks = true
		default:
			return false
		}
	}
	return lacks && !b.said[sealed{list, v}]
}

// say notes that the versions that nodes have of a list are listed.
func (b *before) say(list string, nodes []having) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range nodes {
		b.said[sealed{list, n.version}] = true
	}
}

// isLate notes that a node has reported a version of a list that b lacks.
func (b *before) isLate(list string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late[list] = true
}

// takeLate returns the lists of isLate.
func (b *before) takeLate() (lists []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lists = slices.Sorted(maps.Keys(b.late))
	clear(b.late)
	return lists
}

// listLate lists what nodes had in epochs before this one, and have reported too late to be taken back.
func (p *publisher) listLate(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	once, cancel := context.WithCancel(ctx)
	cancel()
	var r recovered
	for _, name := range p.before.takeLate() {
		for within.Err() == nil {
			nodes := p.nodes.having(name, func(v wire.Version, seal string) bool {
				return v.Epoch < p.store.Used().Epoch && p.before.lacks(name, v) && v.Proved(p.authority.PublicKey(), name, seal)
			})
			if len(nodes) == 0 {
				break
			}
			if err := p.recoverFrom(ctx, once, name, nodes[:1], &r); err != nil {
				return err
			}
			p.before.say(name, nodes[:1])
		}
	}
	if r.lost {
		p.note(func(s *publisherState) {
			if !strings.Contains(s.lost, toList) {
				s.lost += toList
			}
			s.lostAt = time.Now()
		})
	}
	return nil
}

// toList ends a problem with where to read on.
const toList = ". weir fleet lost lists what nodes have reported later"

// savedBy returns a list as a node has saved it, and whether the hub has signed all of that.
func (p *publisher) savedBy(ctx context.Context, node, name string) (*store.List, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, savedTime)
	defer cancel()
	var file []byte
	for {
		q := wire.SavedQuestion{List: name, Offset: int64(len(file))}
		answers, err := ask[wire.SavedPart](ctx, p.asker, []string{node}, wire.AskSaved, q, patience, nil)
		if err == nil {
			err = answers[0].err
		}
		if err != nil {
			return nil, false, err
		}
		part := answers[0].value
		file = append(file, part.Part...)
		if len(part.Part) == 0 || int64(len(file)) >= part.Size {
			break
		}
		if part.Size > maxSaved {
			return nil, false, fmt.Errorf("it has %d MiB, want at most %d", part.Size>>20, maxSaved>>20)
		}
	}
	return store.Saved(p.authority.Key(), name, bytes.NewReader(file))
}

// changesOf returns the changes that add and remove entries of a list, but for those that commands have named since.
func changesOf(l *managed, node string, add map[key.Key]time.Time, remove []key.Key) (all []journal.Change) {
	now, allow := time.Now(), l.Action == config.Allow
	for _, k := range remove {
		if l.early[k] {
			continue
		}
		all = append(all, journal.Change{Remove: true, Entry: journal.Entry{List: l.Name, Key: k, Allow: allow}})
	}
	for k, expires := range add {
		if !l.early[k] && (expires.IsZero() || expires.After(now)) {
			all = append(all, journal.Change{Entry: journal.Entry{
				List: l.Name, Key: k, Allow: allow, Added: now, Expires: expires, Reason: "taken back from node " + node,
			}})
		}
	}
	return all
}

// texts returns the entries that changes remove, or add.
func texts(changes []journal.Change, remove bool) (all []string) {
	for _, c := range changes {
		if c.Remove == remove {
			all = append(all, c.Key.String())
		}
	}
	slices.Sort(all)
	return all
}

// recordBack records changes that were taken back.
func (p *publisher) recordBack(node, name string, changes []journal.Change) {
	r := audit.Record{Change: audit.TakeBack, List: name, Entries: len(changes), Changed: len(changes), Reason: "from node " + node, Source: "weir-hub"}
	for _, c := range changes[:min(len(changes), audit.MaxFirst)] {
		text := c.Key.String()
		if c.Remove {
			text = "-" + text
		}
		r.First = append(r.First, text)
	}
	p.audit.Record(r)
}

const (
	lostFile = "lost.json"

	// maxLost bounds the losses that are kept, and maxLostEntries the entries of one.
	maxLost, maxLostEntries = 100, 10_000

	keepLost = 30 * 24 * time.Hour
)

// lostChanges keeps changes by commands that are lost, in a file. It is safe for concurrent use.
type lostChanges struct {
	path string
	log  *slog.Logger

	mu  sync.Mutex
	all []api.LostChanges
}

func openLost(path string, log *slog.Logger) *lostChanges {
	l := &lostChanges{path: path, log: log}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &l.all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("what was listed as lost cannot be read: " + err.Error())
	}
	l.all = slices.DeleteFunc(l.all, func(c api.LostChanges) bool { return time.Since(c.Time) > keepLost })
	return l
}

func (l *lostChanges) add(c api.LostChanges) {
	for _, entries := range []*[]string{&c.Added, &c.Removed} {
		if over := len(*entries) - maxLostEntries; over > 0 {
			*entries, c.More = (*entries)[:maxLostEntries], c.More+over
		}
	}
	l.log.Warn("changes of a list may be lost, weir fleet lost lists them: "+c.Why, "list", c.List, "node", c.Node, "version", c.Version.String(), "entries", len(c.Added)+len(c.Removed)+c.More)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
	l.all = l.all[max(0, len(l.all)-maxLost):]
	text, err := json.Marshal(l.all)
	if err == nil {
		err = durable.WriteFile(l.path, text)
	}
	if err != nil {
		l.log.Error("what is lost is listed until the hub ends: " + err.Error())
	}
}

// Lost implements [server.Hub]: changes that were made again since are not lost.
func (h *Hub) Lost(ctx context.Context) (all api.FleetLost, err error) {
	h.lost.mu.Lock()
	all.Lost = slices.Clone(h.lost.all)
	h.lost.mu.Unlock()
	err = h.Do(ctx, func() error {
		for i := range all.Lost {
			c := &all.Lost[i]
			l := h.lists.get(c.List)
			if l == nil {
				continue
			}
			has := func(text string) bool {
				e, err := listfile.ParseEntry(text)
				if err == nil {
					for k := range e.Set().All() {
						return l.history.Contents().Has(k)
					}
				}
				return false
			}
			listed := len(c.Added) + len(c.Removed)
			c.Added = slices.DeleteFunc(slices.Clone(c.Added), has)
			c.Removed = slices.DeleteFunc(slices.Clone(c.Removed), func(e string) bool { return !has(e) })
			if listed > 0 && len(c.Added)+len(c.Removed)+c.More == 0 {
				c.List = "" // all of it was made again
			}
		}
		return nil
	})
	all.Lost = slices.DeleteFunc(all.Lost, func(c api.LostChanges) bool { return c.List == "" })
	return all, err
}

package journal

import (
	"container/heap"
	"iter"
	"unique"

	"weir/filter/key"
)

// entries is the state that results from a journal's records. An entry for an
// IPv4 address takes about 150 bytes.
type entries struct {
	lists map[string]*list
	due   deadlines // the entries that expire
	n     int
	size  int64 // of the records of the present entries

	reason string // the last one: entries added together usually share it
}

type list struct {
	name    string
	entries map[string]*entry // by key, as below
}

type entry struct {
	list           *list
	key            string // serialised, which is a third of the size for most
	reason         string
	added, expires int64 // as in a record
	uid            uint32
	due            int32                 // index in deadlines, -1 for none
	client         unique.Handle[string] // which few share
	allow          bool
}

func (e *entry) entry() Entry {
	k, _ := key.Parse([]byte(e.key)) // cannot fail: apply serialised it
	return Entry{
		List: e.list.name, Allow: e.allow, Key: k, Reason: e.reason, UID: e.uid, Client: e.client.Value(),
		Added: fromMillis(e.added), Expires: fromMillis(e.expires),
	}
}

func (e *entry) size() int64 { return recordLen(len(e.key), e.list.name, e.client.Value(), e.reason) }

// apply makes a change. Removing an absent entry changes nothing.
func (es *entries) apply(c Change) {
	if c.whole > 0 {
		return
	}
	var buf [key.MaxLen]byte
	serial := c.Key.Append(buf[:0])
	l := es.lists[c.List]
	if l != nil {
		if old := l.entries[string(serial)]; old != nil {
			es.n--
			es.size -= old.size()
			if old.due >= 0 {
				heap.Remove(&es.due, int(old.due))
			}
			delete(l.entries, old.key)
		}
	}
	if c.Remove {
		if l != nil && len(l.entries) == 0 {
			delete(es.lists, c.List)
		}
		return
	}
	if l == nil {
		l = &list{name: c.List, entries: map[string]*entry{}}
		if es.lists == nil {
			es.lists = map[string]*list{}
		}
		es.lists[c.List] = l
	}
	if c.Reason == es.reason {
		c.Reason = es.reason
	}
	es.reason = c.Reason
	e := &entry{
		list: l, key: string(serial), reason: c.Reason, added: millis(c.Added), expires: millis(c.Expires),
		uid: c.UID, client: unique.Make(c.Client), due: -1, allow: c.Allow,
	}
	l.entries[e.key] = e
	es.n++
	es.size += e.size()
	if e.expires != 0 {
		heap.Push(&es.due, e)
	}
}

func (es *entries) get(list string, k key.Key) (Entry, bool) {
	var buf [key.MaxLen]byte
	if l := es.lists[list]; l != nil {
		if e := l.entries[string(k.Append(buf[:0]))]; e != nil {
			return e.entry(), true
		}
	}
	return Entry{}, false
}

func (es *entries) all() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, l := range es.lists {
			for e := range l.all() {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func (l *list) all() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if l == nil {
			return
		}
		for _, e := range l.entries {
			if !yield(e.entry()) {
				return
			}
		}
	}
}

// deadlines is a heap of entries by expiry.
type deadlines []*entry

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].expires < d[j].expires }

func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].due, d[j].due = int32(i), int32(j)
}

func (d *deadlines) Push(x any) {
	e := x.(*entry)
	e.due = int32(len(*d))
	*d = append(*d, e)
}

func (d *deadlines) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil // for the garbage collector
	*d = (*d)[:last]
	return e
}

// until calls fn for the entries at index i of the heap and below that expire
// at or before a time. It visits little more than twice as many.
func (d deadlines) until(at int64, i int, fn func(*entry)) {
	if i >= len(d) || d[i].expires > at {
		return
	}
	fn(d[i])
	d.until(at, 2*i+1, fn)
	d.until(at, 2*i+2, fn)
}

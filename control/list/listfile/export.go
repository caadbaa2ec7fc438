package listfile

import (
	"bufio"
	"fmt"
	"io"

	"weir/control/list"
)

// Export writes a set in the format of lists, or of another program. It is an
// [io.WriterTo].
type Export struct {
	set      *list.Set
	whole    bool // any entry can be expressed
	src, dst bool // what the list's direction covers; neither: unknown
	write    func(Export, *bufio.Writer)
	name     string // of the list
	zero     bool   // prefixes of no bits can be expressed
}

// Plain exports a set in the format of lists, so that a list of any direction that reads it has the
// same entries.
func Plain(s *list.Set) Export { return PlainFor(s, false, false) }

// PlainFor is Plain for lists whose direction covers these sides: entries for the same sides are
// addresses.
func PlainFor(s *list.Set, src, dst bool) Export {
	return Export{set: list.Union(s), whole: true, src: src, dst: dst, write: Export.plain}
}

// IPSet exports a set as "ipset save" prints it: as two sets, NAME-4 and NAME-6,
// which "ipset restore" reads. src and dst say which sides the list's direction
// covers. The format has no flows, no prefixes of no bits, and no entries that
// match another side than the direction covers, or one of two only.
func IPSet(s *list.Set, name string, src, dst bool) Export {
	return Export{set: list.Union(s), src: src, dst: dst, name: name, write: Export.ipset}
}

// NFT exports a set as [IPSet] does, but as a script for "nft -f", with a table
// of two sets. It can express prefixes of no bits.
func NFT(s *list.Set, name string, src, dst bool) Export {
	return Export{set: list.Union(s), src: src, dst: dst, name: name, write: Export.nft, zero: true}
}

// WriteTo writes the set.
func (e Export) WriteTo(w io.Writer) (int64, error) {
	c := &tally{w: w}
	b := bufio.NewWriterSize(c, 64<<10)
	e.write(e, b)
	err := b.Flush() // the first error of all
	return c.n, err
}

// tally counts the bytes that are written to w.
type tally struct {
	w io.Writer
	n int64
}

func (c *tally) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// LeftOut returns the number of entries that the format cannot express.
func (e Export) LeftOut() int {
	if e.whole {
		return 0
	}
	return e.set.Flows.Len() + leftOut(e, &e.set.V4) + leftOut(e, &e.set.V6)
}

func leftOut[P list.Prefix[P]](e Export, p *list.Prefixes[P]) (n int) {
	for k := range p.Src.All() {
		if !expressible(e, p, k, true) {
			n++
		}
	}
	for k := range p.Dst.All() {
		if !expressible(e, p, k, false) {
			n++
		}
	}
	return n
}

// expressible reports whether an entry for one side matches what an address of the
// list does.
func expressible[P list.Prefix[P]](e Export, p *list.Prefixes[P], k P, source bool) bool {
	switch {
	case k.Bits() == 0:
		return e.zero
	case p.Plain.Has(k):
		return true
	case e.src && e.dst:
		return p.Src.Has(k) && p.Dst.Has(k)
	}
	return e.src == source
}

// addresses calls fn for the prefixes that can be expressed, each once.
func addresses[P list.Prefix[P]](e Export, p *list.Prefixes[P], fn func(P)) {
	for k := range p.Plain.All() {
		fn(k)
	}
	for k := range p.Src.All() {
		if expressible(e, p, k, true) && !p.Plain.Has(k) {
			fn(k)
		}
	}
	for k := range p.Dst.All() {
		if expressible(e, p, k, false) && !p.Plain.Has(k) && (!p.Src.Has(k) || !expressible(e, p, k, true)) {
			fn(k)
		}
	}
}

// appendPrefix appends a prefix; a single address has no length.
func appendPrefix[P list.Prefix[P]](b []byte, p P) []byte {
	if q := p.Prefix(); !q.IsSingleIP() {
		return q.AppendTo(b)
	}
	return p.Prefix().Addr().AppendTo(b)
}

// writeLine writes a prefix between other parts of a line.
func writeLine[P list.Prefix[P]](w *bufio.Writer, before string, p P, after string) {
	_, _ = w.WriteString(before) // Flush returns the error, here and below
	_, _ = w.Write(appendPrefix(w.AvailableBuffer(), p))
	_, _ = w.WriteString(after)
}

// plain writes the prefixes of a family. It writes a source alone as a flow: an address would match
// the sides of the list's direction.
func plain[P list.Prefix[P]](w *bufio.Writer, e Export, p *list.Prefixes[P], source, end string) {
	for k := range p.Plain.All() {
		writeLine(w, "", k, "\n")
	}
	for k := range p.Src.All() {
		if k.Bits() == 0 || e.src && (!e.dst || p.Dst.Has(k)) {
			writeLine(w, "", k, "\n")
		} else {
			writeLine(w, source, k, end)
		}
	}
	for k := range p.Dst.All() {
		if !e.src || !e.dst || !p.Src.Has(k) {
			writeLine(w, "> ", k, "\n")
		}
	}
}

func (e Export) plain(w *bufio.Writer) {
	plain(w, e, &e.set.V4, "any ", ":* > *:*\n")
	plain(w, e, &e.set.V6, "any [", "]:* > *:*\n")
	for k := range e.set.Flows.All() {
		_, _ = w.WriteString(k.String() + "\n")
	}
}

// setName returns the name of the set of a family. Those of ipset have 31 bytes,
// those of nft begin with a letter.
func (e Export) setName(family string) string {
	name := e.name
	if c := name[0] | 0x20; c < 'a' || c > 'z' {
		name = "list-" + name
	}
	const most = 31
	return name[:min(len(name), most-len(family))] + family
}

func (e Export) ipset(w *bufio.Writer) {
	ipset(w, e, e.setName("-4"), "inet", &e.set.V4)
	ipset(w, e, e.setName("-6"), "inet6", &e.set.V6)
}

func ipset[P list.Prefix[P]](w *bufio.Writer, e Export, name, family string, p *list.Prefixes[P]) {
	n := 0
	addresses(e, p, func(P) { n++ })
	fmt.Fprintf(w, "create %s hash:net family %s maxelem %d\n", name, family, max(n, 65536))
	addresses(e, p, func(k P) {
		_, _ = w.WriteString("add " + name + " ")
		_, _ = w.Write(append(appendPrefix(w.AvailableBuffer(), k), '\n'))
	})
}

func (e Export) nft(w *bufio.Writer) {
	_, _ = w.WriteString("table inet weir {\n")
	nft(w, e, e.setName("-4"), "ipv4_addr", &e.set.V4)
	nft(w, e, e.setName("-6"), "ipv6_addr", &e.set.V6)
	_, _ = w.WriteString("}\n")
}

func nft[P list.Prefix[P]](w *bufio.Writer, e Export, name, kind string, p *list.Prefixes[P]) {
	_, _ = w.WriteString("\tset " + name + " {\n\t\ttype " + kind + "\n\t\tflags interval\n\t\tauto-merge\n")
	before := "\t\telements = {\n\t\t\t"
	addresses(e, p, func(k P) {
		_, _ = w.WriteString(before)
		before = ",\n\t\t\t"
		_, _ = w.Write(appendPrefix(w.AvailableBuffer(), k))
	})
	if before[0] == ',' {
		_, _ = w.WriteString("\n\t\t}\n")
	}
	_, _ = w.WriteString("\t}\n")
}

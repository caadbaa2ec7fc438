package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
)

// magic is the beginning of a journal.
const magic = "weir journal 1\n"

// A record is a change, all numbers in network order:
//
//	checksum  8  XXH64 of the rest, seeded with the record's offset in the file
//	length    2  of the rest
//	flags     1
//	added     8  milliseconds since 1970 of steady time, 0: unknown
//	expires   8  the same, 0: never
//	uid       4
//	key          its length in a byte, then filter/key's serialisation
//	list         its length in a byte, then the name
//	client       the same, where the flags have flagClient
//	reason       the rest
//
// The first record of a file that was rewritten states in the field added how long the file was then,
// and has no key, list or reason: a shorter file was cut, unlike one that ends with a torn record.
//
// A damaged record has a valid checksum with probability 2⁻⁶⁴, and so does, due
// to the offset, a record in another place, such as bytes of a reason that look
// like one. Where bytes are missing, or have been inserted, what follows is shifted:
// see resync.
const (
	sumLen     = 8
	frameLen   = sumLen + 2
	fixedLen   = frameLen + 1 + 8 + 8 + 4 + 1 + 1 // all but key, list, client and reason
	maxBodyLen = fixedLen - frameLen + key.MaxLen + MaxListLen + 1 + MaxClientLen + MaxReasonLen
)

const (
	flagRemove = 1 << iota
	flagAllow
	flagWhole // the record has the file's length, and is no change
	flagClient
	flagsEnd
)

// recordLen returns the length of a record whose serialised key has keyLen
// bytes.
func recordLen(keyLen int, list, client, reason string) int64 {
	n := int64(fixedLen + keyLen + len(list) + len(reason))
	if client != "" {
		n += 1 + int64(len(client))
	}
	return n
}

// wholeLen is the length of a record of a file's length.
const wholeLen = fixedLen

// appendRecord appends the record of a change to b, which begins at the file
// offset base. It fails on changes that could not be parsed again.
func appendRecord(b []byte, base int64, c Change) ([]byte, error) {
	var buf [key.MaxLen]byte
	serial := c.Key.Append(buf[:0])
	if c.whole > 0 {
		serial, c = nil, Change{whole: c.whole, Entry: Entry{Added: time.UnixMilli(c.whole)}}
	}
	switch parsed, err := key.Parse(serial); {
	case c.whole > 0:
	case err != nil:
		return nil, err
	case parsed != c.Key:
		return nil, fmt.Errorf("key %v is not canonical", c.Key)
	case c.List == "" || len(c.List) > MaxListLen:
		return nil, fmt.Errorf("list name of %d bytes: want 1 to %d", len(c.List), MaxListLen)
	case len(c.Client) > MaxClientLen:
		return nil, fmt.Errorf("client of %d bytes: want at most %d", len(c.Client), MaxClientLen)
	case len(c.Reason) > MaxReasonLen:
		return nil, fmt.Errorf("reason of %d bytes: want at most %d", len(c.Reason), MaxReasonLen)
	}
	start := len(b)
	b = append(b, make([]byte, sumLen)...)
	b = binary.BigEndian.AppendUint16(b, uint16(recordLen(len(serial), c.List, c.Client, c.Reason)-frameLen))
	var flags byte
	if c.Remove {
		flags |= flagRemove
	}
	if c.Allow {
		flags |= flagAllow
	}
	if c.whole > 0 {
		flags |= flagWhole
	}
	if c.Client != "" {
		flags |= flagClient
	}
	b = append(b, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(millis(c.Added)))
	b = binary.BigEndian.AppendUint64(b, uint64(millis(c.Expires)))
	b = binary.BigEndian.AppendUint32(b, c.UID)
	b = append(append(b, byte(len(serial))), serial...)
	b = append(append(b, byte(len(c.List))), c.List...)
	if c.Client != "" {
		b = append(append(b, byte(len(c.Client))), c.Client...)
	}
	b = append(b, c.Reason...)
	binary.BigEndian.PutUint64(b[start:], hash.Sum(uint64(base)+uint64(start), b[start+sumLen:]))
	return b, nil
}

var errRecord = errors.New("no intact record")

// parseRecord parses the record at an offset of a file, which was written shift
// bytes behind it, and returns its length.
func parseRecord(file []byte, offset, shift int) (Change, int, error) {
	b := file[offset:]
	n, ok := frame(b)
	if !ok || !written(b[:n], offset+shift) {
		return Change{}, 0, errRecord
	}
	c, err := parseBody(b[frameLen:n])
	return c, n, err
}

// frame returns the length of the record at the beginning of b, if there is one.
func frame(b []byte) (n int, ok bool) {
	if len(b) < fixedLen {
		return 0, false
	}
	n = frameLen + int(binary.BigEndian.Uint16(b[sumLen:]))
	return n, n >= fixedLen && n <= frameLen+maxBodyLen && n <= len(b)
}

// written reports whether a record has the checksum of an offset.
func written(record []byte, offset int) bool {
	return binary.BigEndian.Uint64(record) == hash.Sum(uint64(offset), record[sumLen:])
}

// parseBody parses what follows a record's length. It accepts everything from
// appendRecord.
func parseBody(b []byte) (c Change, err error) {
	flags := b[0]
	if flags >= flagsEnd {
		return c, errRecord
	}
	if flags&flagWhole != 0 {
		c.whole = int64(binary.BigEndian.Uint64(b[1:]))
		if rest := b[9:]; flags != flagWhole || c.whole <= 0 || len(b) != wholeLen-frameLen || len(bytes.Trim(rest, "\x00")) > 0 {
			return Change{}, errRecord
		}
		return c, nil
	}
	c.Remove, c.Allow = flags&flagRemove != 0, flags&flagAllow != 0
	c.Added = fromMillis(int64(binary.BigEndian.Uint64(b[1:])))
	c.Expires = fromMillis(int64(binary.BigEndian.Uint64(b[9:])))
	c.UID = binary.BigEndian.Uint32(b[17:])
	serial, b, ok := cutShort(b[21:])
	if !ok {
		return c, errRecord
	}
	if c.Key, err = key.Parse(serial); err != nil {
		return c, errRecord
	}
	name, b, ok := cutShort(b)
	if !ok || len(name) == 0 {
		return c, errRecord
	}
	if flags&flagClient != 0 {
		var client []byte
		if client, b, ok = cutShort(b); !ok || len(client) == 0 {
			return c, errRecord
		}
		c.Client = string(client)
	}
	if len(b) > MaxReasonLen {
		return c, errRecord
	}
	c.List, c.Reason = string(name), string(b)
	return c, nil
}

// cutShort cuts off a string that is preceded by its length in one byte.
func cutShort(b []byte) (short, rest []byte, ok bool) {
	if len(b) == 0 || len(b) <= int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

// millis converts a time to that of a record, and fromMillis back; the zero
// time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// span is a half-open range of a file, and the shift of the bytes after it.
type span struct{ from, to, shift int }

// scanner reads the records of a file.
type scanner struct {
	file  []byte
	shift int // of the records at hand: how far behind their place they were written
	left  int // shifts that may still be tried
}

// maxTries bounds the shifts that are tried in one file: a second's worth.
const maxTries = 1 << 26

// scan calls fn for each intact record of a file. It returns the damaged parts
// before intact records, and at the end if that was cut, the end of the last intact record, and
// its shift. It fails if a nonempty file has neither the magic nor any intact record.
func scan(file []byte, fn func(Change)) (damaged []span, end, shift int, err error) {
	s := scanner{file: file, left: maxTries}
	if file == nil { // there is none
		return nil, 0, 0, nil
	}
	pos, whole := 0, len(magic)+wholeLen // it is created with these
	switch {
	case len(file) < len(magic) && string(file) == magic[:len(file)]:
		pos = len(file)
	case len(file) >= len(magic) && string(file[:len(magic)]) == magic:
		pos, end = len(magic), len(magic)
	default:
		from := s.resync(0)
		if from == len(file) {
			return nil, 0, 0, ErrForeign
		}
		damaged, pos = append(damaged, span{0, from, s.shift}), from
	}
	for pos < len(file) {
		c, n, err := parseRecord(file, pos, s.shift)
		if err != nil {
			after := s.resync(pos)
			if after < len(file) {
				damaged = append(damaged, span{pos, after, s.shift})
			}
			pos = after
			continue
		}
		fn(c)
		whole = max(whole, int(c.whole))
		pos += n
		end = pos
	}
	if end+s.shift < whole {
		damaged = append(damaged, span{end, len(file), max(s.shift, whole-len(file))})
	}
	return damaged, end, s.shift, nil
}

// resync returns the offset of the first intact record behind damage at pos, or
// the file's length if there is none, and sets its shift.
func (s *scanner) resync(damage int) int {
	// Mostly it is one record.
	for pos := damage; pos < min(damage+frameLen+maxBodyLen, len(s.file)); pos++ {
		if _, _, err := parseRecord(s.file, pos, s.shift); err == nil {
			return pos
		}
	}
	for pos := damage; pos < len(s.file); pos++ {
		n, ok := frame(s.file[pos:])
		if !ok {
			continue
		}
		record := s.file[pos:][:n]
		if _, err := parseBody(record[frameLen:]); err != nil {
			continue
		}
		if written(record, pos+s.shift) {
			return pos
		}
		if shift, ok := s.findShift(damage, pos, record); ok {
			s.shift = shift
			return pos
		}
	}
	return len(s.file)
}

// Shifts that are tried: any by up to nearShift bytes, as a tool or an editor
// leaves it, and as many blocks of a disk.
const (
	nearShift = 1 << 15
	farShift  = 1 << 22
	block     = 512
)

// findShift finds the shift of a record behind damage: bytes have been cut out, or
// have been inserted.
func (s *scanner) findShift(damage, pos int, record []byte) (shift int, ok bool) {
	try := func(by int) bool {
		s.left--
		shift = s.shift + by
		return written(record, pos+shift) && s.chain(pos, shift)
	}
	for by := 1; by <= nearShift && s.left > 0; by++ {
		// What is inserted cannot be longer than the damage.
		if try(by) || by <= pos-damage && try(-by) {
			return shift, true
		}
	}
	for by := nearShift + block; by <= farShift && s.left > 0; by += block {
		if try(by) || by <= pos-damage && try(-by) {
			return shift, true
		}
	}
	return 0, false
}

// chain reports whether records with a shift follow each other from pos on, further
// than a reason could contain them, or up to the file's end.
func (s *scanner) chain(pos, shift int) bool {
	from := pos
	for pos < len(s.file) && pos-from <= MaxReasonLen {
		_, n, err := parseRecord(s.file, pos, shift)
		if err != nil {
			return false
		}
		pos += n
	}
	return true
}

package journal

import (
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
//	checksum  8  XXH64 of what follows, seeded with the record's offset in the file
//	length    2  of what follows
//	flags     1
//	added     8  milliseconds since 1970, 0: unknown
//	expires   8  the same, 0: never
//	uid       4
//	key          its length in a byte, then filter/key's serialisation
//	list         its length in a byte, then the name
//	reason       the rest
//
// A damaged record has a valid checksum with probability 2⁻⁶⁴, and so does, due
// to the offset, a record in another place, such as bytes of a reason that look
// like one.
const (
	sumLen     = 8
	frameLen   = sumLen + 2
	fixedLen   = frameLen + 1 + 8 + 8 + 4 + 1 + 1 // all but key, list and reason
	maxBodyLen = fixedLen - frameLen + key.MaxLen + MaxListLen + MaxReasonLen
)

const (
	flagRemove = 1 << iota
	flagAllow
	flagsEnd
)

// recordLen returns the length of a record whose serialised key has keyLen
// bytes.
func recordLen(keyLen int, list, reason string) int64 {
	return int64(fixedLen + keyLen + len(list) + len(reason))
}

// appendRecord appends the record of a change to b, which begins at the file
// offset base. It fails on changes that could not be parsed again.
func appendRecord(b []byte, base int64, c Change) ([]byte, error) {
	var buf [key.MaxLen]byte
	serial := c.Key.Append(buf[:0])
	switch parsed, err := key.Parse(serial); {
	case err != nil:
		return nil, err
	case parsed != c.Key:
		return nil, fmt.Errorf("key %v is not canonical", c.Key)
	case c.List == "" || len(c.List) > MaxListLen:
		return nil, fmt.Errorf("list name of %d bytes: want 1 to %d", len(c.List), MaxListLen)
	case len(c.Reason) > MaxReasonLen:
		return nil, fmt.Errorf("reason of %d bytes: want at most %d", len(c.Reason), MaxReasonLen)
	}
	start := len(b)
	b = append(b, make([]byte, sumLen)...)
	b = binary.BigEndian.AppendUint16(b, uint16(recordLen(len(serial), c.List, c.Reason)-frameLen))
	var flags byte
	if c.Remove {
		flags |= flagRemove
	}
	if c.Allow {
		flags |= flagAllow
	}
	b = append(b, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(millis(c.Added)))
	b = binary.BigEndian.AppendUint64(b, uint64(millis(c.Expires)))
	b = binary.BigEndian.AppendUint32(b, c.UID)
	b = append(append(b, byte(len(serial))), serial...)
	b = append(append(b, byte(len(c.List))), c.List...)
	b = append(b, c.Reason...)
	binary.BigEndian.PutUint64(b[start:], hash.Sum(uint64(base)+uint64(start), b[start+sumLen:]))
	return b, nil
}

var errRecord = errors.New("no intact record")

// parseRecord parses the record at an offset of a file and returns its length.
func parseRecord(file []byte, offset int) (Change, int, error) {
	b := file[offset:]
	if len(b) < fixedLen {
		return Change{}, 0, errRecord
	}
	n := frameLen + int(binary.BigEndian.Uint16(b[sumLen:]))
	if n < fixedLen || n > frameLen+maxBodyLen || n > len(b) {
		return Change{}, 0, errRecord
	}
	if binary.BigEndian.Uint64(b) != hash.Sum(uint64(offset), b[sumLen:n]) {
		return Change{}, 0, errRecord
	}
	c, err := parseBody(b[frameLen:n])
	return c, n, err
}

// parseBody parses what follows a record's length. It accepts everything from
// appendRecord.
func parseBody(b []byte) (c Change, err error) {
	flags := b[0]
	if flags >= flagsEnd {
		return c, errRecord
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
	if !ok || len(name) == 0 || len(b) > MaxReasonLen {
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

// span is a half-open range of a file.
type span struct{ from, to int }

// scan calls fn for each intact record of a file. It returns the damaged parts
// before intact records, and the end of the last intact record. It fails if a
// nonempty file has neither the magic nor any intact record.
func scan(file []byte, fn func(Change)) (damaged []span, end int, err error) {
	pos := 0
	switch {
	case len(file) < len(magic) && string(file) == magic[:len(file)]:
		return nil, 0, nil
	case len(file) >= len(magic) && string(file[:len(magic)]) == magic:
		pos, end = len(magic), len(magic)
	default:
		from := next(file, 0)
		if from == len(file) {
			return nil, 0, ErrForeign
		}
		damaged, pos = append(damaged, span{0, from}), from
	}
	for pos < len(file) {
		c, n, err := parseRecord(file, pos)
		if err != nil {
			after := next(file, pos+1)
			if after < len(file) {
				damaged = append(damaged, span{pos, after})
			}
			pos = after
			continue
		}
		fn(c)
		pos += n
		end = pos
	}
	return damaged, end, nil
}

// next returns the offset of the first intact record at or after pos, or the
// file's length if there is none.
func next(file []byte, pos int) int {
	for ; pos < len(file); pos++ {
		if _, _, err := parseRecord(file, pos); err == nil {
			return pos
		}
	}
	return pos
}

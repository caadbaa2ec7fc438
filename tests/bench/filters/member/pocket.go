package member

import "math/bits"

// pocket is the geometry of a small dictionary of fingerprints, as blocks of the vector quotient
// filter and bins of the prefix filter are. A fingerprint is a quotient and a
// remainder. First comes a bit string: for each quotient a 0 for each of its remainders, then
// a 1. The remainders follow, in the order of their quotients.
type pocket struct {
	quotients, slots int
	width            int // of a remainder
	first            int // bit of the first remainder; the string has at most 128
	size             int // in words of 64 bits
}

// head returns the bit string of the pocket that begins at a word.
func (p *pocket) head(m *memory, at int) (low, high uint64) {
	low = m.at(at)
	if p.first > 64 {
		return low, m.at(at + 1)
	}
	return low & (1<<p.first - 1), 0
}

// selectOne returns the position of the 1 with number i, from 0, in a string that has as many.
func selectOne(low, high uint64, i int) int {
	if n := bits.OnesCount64(low); i >= n {
		return 64 + selectWord(high, i-n)
	}
	return selectWord(low, i)
}

// selectWord finds the byte by the sums of ones up to each, of all bytes at once (Vigna,
// "Broadword implementation of rank/select queries", WEA 2008, section 3): Go has no instruction
// for it, and neither have programs in the kernel.
func selectWord(w uint64, i int) (position int) {
	const low, high = 0x0101010101010101, 0x8080808080808080
	sums := w - w>>1&0x5555555555555555
	sums = sums&0x3333333333333333 + sums>>2&0x3333333333333333
	sums = (sums + sums>>4) & 0x0f0f0f0f0f0f0f0f * low
	position = 8 * bits.OnesCount64(((uint64(i)*low|high)-sums)&high) // bytes before it
	i -= int(sums << 8 >> position & 0xff)
	w >>= position
	for range i {
		w &= w - 1
	}
	return position + bits.TrailingZeros64(w)
}

// span returns the remainders of a quotient: from start to before end.
func span(low, high uint64, quotient int) (start, end int) {
	if quotient > 0 {
		start = selectOne(low, high, quotient-1) - (quotient - 1)
	}
	return start, selectOne(low, high, quotient) - quotient
}

func (p *pocket) count(low, high uint64) int {
	return selectOne(low, high, p.quotients-1) - (p.quotients - 1)
}

func (p *pocket) remainder(m *memory, at, i int) uint64 {
	bit := p.first + i*p.width
	return m.at(at+bit/64) >> (bit % 64) & (1<<p.width - 1)
}

func (p *pocket) find(m *memory, at, quotient int, remainder uint64) (slot int, low, high uint64) {
	low, high = p.head(m, at)
	start, end := span(low, high, quotient)
	for i := start; i < end; i++ {
		if p.remainder(m, at, i) == remainder {
			return i, low, high
		}
	}
	return -1, low, high
}

// clear makes an empty pocket, in which each quotient has its 1.
func (p *pocket) clear(m *memory, at int) {
	p.setHead(m, at, 1<<min(p.quotients, 64)-1, 1<<max(p.quotients-64, 0)-1)
}

func (p *pocket) setHead(m *memory, at int, low, high uint64) {
	if p.first > 64 {
		m.words[at], m.words[at+1] = low, high
		return
	}
	m.set(at*64, p.first, low)
}

// add needs an empty slot.
func (p *pocket) add(m *memory, at, quotient int, remainder uint64) {
	low, high := p.head(m, at)
	_, end := span(low, high, quotient)
	for i := p.count(low, high); i > end; i-- {
		m.set(at*64+p.first+i*p.width, p.width, p.remainder(m, at, i-1))
	}
	m.set(at*64+p.first+end*p.width, p.width, remainder)
	// A 0 before the quotient's 1; what follows moves up.
	if bit := end + quotient; bit < 64 {
		below := uint64(1)<<bit - 1
		high = high<<1 | low>>63
		low = low&below | low&^below<<1
	} else {
		below := uint64(1)<<(bit-64) - 1
		high = high&below | high&^below<<1
	}
	p.setHead(m, at, low, high)
}

// remove removes what is in a slot that belongs to the quotient.
func (p *pocket) remove(m *memory, at, quotient, slot int) {
	low, high := p.head(m, at)
	for i := slot; i+1 < p.count(low, high); i++ {
		m.set(at*64+p.first+i*p.width, p.width, p.remainder(m, at, i+1))
	}
	if bit := slot + quotient; bit < 64 {
		below := uint64(1)<<bit - 1
		low = low&below | low>>1&^below | high<<63
		high >>= 1
	} else {
		below := uint64(1)<<(bit-64) - 1
		high = high&below | high>>1&^below
	}
	p.setHead(m, at, low, high)
}

// greatest returns the greatest fingerprint of a pocket that is not empty.
func (p *pocket) greatest(m *memory, at int) (quotient, slot int, remainder uint64) {
	low, high := p.head(m, at)
	last := p.count(low, high) - 1
	for quotient = p.quotients - 1; ; quotient-- {
		start, end := span(low, high, quotient)
		if start > last {
			continue
		}
		for i := start; i < end; i++ {
			if v := p.remainder(m, at, i); i == start || v > remainder {
				slot, remainder = i, v
			}
		}
		return quotient, slot, remainder
	}
}

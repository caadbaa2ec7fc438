package quantity

import "strings"

// Nearest returns the word at the smallest distance, unless that is more than one
// change in three letters: then it returns "".
func Nearest(word string, words []string) string {
	best, fewest := "", 1+max(1, len(word)/3)
	for _, w := range words {
		if n := distance(strings.ToLower(word), w); n < fewest {
			best, fewest = w, n
		}
	}
	return best
}

// distance returns the optimal string alignment distance: the number of letters to
// insert, delete, replace or swap with the next one.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			n := row[j]
			if a[i] != b[j] {
				n = 1 + min(n, row[j+1], next[j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				n = min(n, 1+before[j-1])
			}
			next[j+1] = n
		}
		before, row = row, next
	}
	return row[len(b)]
}

package predict

import (
	"container/heap"
	"iter"
)

// Arrivals are packets that are yet to come, each with its sender. The zero value has none.
type Arrivals[T any] struct{ next queue[T] }

// Add adds the packet that comes at a time, in any unit.
func (a *Arrivals[T]) Add(at float64, from T) { heap.Push(&a.next, arrival[T]{at, from}) }

// Until removes and yields the packets that come before a time, the first one first, and when they
// come. The caller may add others meanwhile.
func (a *Arrivals[T]) Until(end float64) iter.Seq2[T, float64] {
	return func(yield func(T, float64) bool) {
		for len(a.next) > 0 && a.next[0].at < end {
			if first := heap.Pop(&a.next).(arrival[T]); !yield(first.from, first.at) {
				return
			}
		}
	}
}

type arrival[T any] struct {
	at   float64
	from T
}

// queue is a heap.
type queue[T any] []arrival[T]

func (q queue[T]) Len() int           { return len(q) }
func (q queue[T]) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue[T]) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue[T]) Push(x any)        { *q = append(*q, x.(arrival[T])) }
func (q *queue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

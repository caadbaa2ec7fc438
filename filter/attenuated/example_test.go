package attenuated_test

import (
	"fmt"
	"log"

	"weir/filter/attenuated"
	"weir/filter/bloom"
)

// Two routers announce to each other what they can reach.
func ExampleRouter() {
	g, err := bloom.Standard(1024, 5)
	if err != nil {
		log.Fatal(err)
	}
	a, b := attenuated.NewRouter(g, 0x5eed, 3), attenuated.NewRouter(g, 0x5eed, 3)
	ab, ba := a.AddLink(), b.AddLink()
	b.Insert([]byte("song.mp3"))

	if f, changed := b.Announce(ba); changed {
		if err := a.Receive(ab, f); err != nil {
			log.Fatal(err)
		}
	}
	link, hops, ok := a.Route([]byte("song.mp3"))
	fmt.Printf("link %d, %d hop, %t\n", link, hops, ok)
	link, hops, ok = b.Route([]byte("song.mp3"))
	fmt.Println(link == attenuated.Local, hops, ok)
	// Output:
	// link 0, 1 hop, true
	// true 0 true
}

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
	b.Add([]byte("song.mp3"))

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

// A node of a tree hands over what is below it.
func ExampleTree_MarshalBinary() {
	g, err := bloom.Standard(1024, 5)
	if err != nil {
		log.Fatal(err)
	}
	root := attenuated.NewTree(g, 0x5eed)
	root.AddChild().Add([]byte("printer"))
	b, err := root.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}

	var elsewhere attenuated.Tree
	if err := elsewhere.UnmarshalBinary(b); err != nil {
		log.Fatal(err)
	}
	route, ok := elsewhere.Find([]byte("printer"))
	fmt.Printf("%d hop, %t\n", route.Hops, ok)
	// Output: 1 hop, true
}

// A message follows a mobile host.
func ExampleGrid() {
	g, err := bloom.Standard(1024, 5)
	if err != nil {
		log.Fatal(err)
	}
	grid := attenuated.NewGrid(0x5eed, g, g, g) // 8 by 8 squares
	for _, at := range []attenuated.Place{{X: 1, Y: 0}, {X: 7, Y: 7}} {
		if err := grid.Move([]byte("phone"), at); err != nil {
			log.Fatal(err)
		}
		j, ok := grid.Find([]byte("phone"), attenuated.Place{X: 0, Y: 0})
		fmt.Printf("%+v, %d hops, %t\n", j.To, j.Hops, ok)
	}
	// Output:
	// {X:1 Y:0}, 1 hops, true
	// {X:7 Y:7}, 3 hops, true
}

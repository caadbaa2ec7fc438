package digest_test

import (
	"fmt"
	"log"
	"time"

	"weir/filter/digest"
	"weir/filter/hash"
)

// Record packets for ten minutes, and ask whether and when one of them passed.
func Example() {
	log1, err := digest.NewLog(digest.Config{Rate: 1000, Slice: time.Second, FPR: 0.001, Keep: 10 * time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	packet := append([]byte{
		0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, // 28 bytes, TTL 64, UDP
		192, 0, 2, 1, 198, 51, 100, 7,
	}, "\x10\x00\x00\x35\x00\x08\x00\x00"...)
	secret := hash.NewSecret(hash.NewSeed())
	sum, err := digest.Sum(secret, packet)
	if err != nil {
		log.Fatal(err)
	}
	passed := time.Unix(1_700_000_000, 0).UTC()
	log1.Record(sum, passed)

	packet[8]-- // one hop further, the digest is the same
	sum, err = digest.Sum(secret, packet)
	if err != nil {
		log.Fatal(err)
	}
	matches, _ := log1.Query(sum, passed.Add(-time.Minute), passed.Add(time.Minute))
	for _, m := range matches {
		fmt.Println(m.Start.UTC().Format(time.DateTime))
	}
	// Output: 2023-11-14 22:13:20
}

// Command release makes the files of a release that no tool of a distribution makes, for
// the script beside it.
//
//	release image NAME VERSION COMMIT OUT ARCH=ROOT…   an archive with an OCI image of all architectures
//	release sbom NAME VERSION BINARY VENDORED OUT      the bill of materials of a binary
//	release notes VERSION CHANGELOG OUT                what the changelog says about a version
//
// ROOT is the root directory of a package; VENDORED is docs/dependencies.md. What it makes
// depends on the arguments and on SOURCE_DATE_EPOCH alone.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	usage := errors.New("want image, sbom or notes with their arguments; see the comment of tests/tools/release")
	if len(args) == 0 {
		return usage
	}
	command, args := args[0], args[1:]
	switch {
	case command == "image" && len(args) > 4:
		return image(args[0], args[1], args[2], args[3], args[4:])
	case command == "sbom" && len(args) == 5:
		return sbom(args[0], args[1], args[2], args[3], args[4])
	case command == "notes" && len(args) == 3:
		return notes(args[0], args[1], args[2])
	}
	return usage
}

// epoch is the time that everything bears.
func epoch() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

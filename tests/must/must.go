// Package must has steps of tests that are not what they test.
package must

import (
	"os"
	"testing"
)

// Have returns a value, and panics with an error that comes in its place.
func Have[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Write writes a file that its owner alone may read.
func Write[T ~string | ~[]byte](t testing.TB, path string, content T) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Read returns the content of a file.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/filter/icarus"
	"weir/tests/must"
)

func TestLoopKey(t *testing.T) {
	secret := icarus.Key{0xc5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string // within the error; "": none
	}{
		{string(secret[:]), 0o600, ""},
		{fmt.Sprintf("%x\n", secret), 0o640, ""},
		{"0123456789abcdef", 0o600, "32 hexadecimal digits"}, // half a secret
		{"c501", 0o600, "32 hexadecimal digits"},
		{string(secret[:]), 0o604, "chmod o="},
	} {
		dir := t.TempDir()
		key, config := filepath.Join(dir, "loop.key"), filepath.Join(dir, "weir.yaml")
		text := fmt.Sprintf("interfaces: [eth0]\nloop:\n  node: 1\n  key_file: %s\n", key)
		for file, text := range map[string]string{key: c.text, config: text} {
			must.Write(t, file, text)
		}
		if err := os.Chmod(key, c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := Load(config)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), config+":4:13: loop.key_file: "+key) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if k, err := got.Loop.Key(); k != secret || err != nil {
			t.Errorf("%q: key %x, %v", c.text, k, err)
		}
	}
}

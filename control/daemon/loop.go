package daemon

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"weir/control/config"
	"weir/control/run"
	"weir/filter/icarus"
)

// loopOf is the node that the configuration makes of this host. It fails where
// the key cannot be read, or anybody can.
func loopOf(c config.Loop) (*run.Loop, error) {
	key, err := readKey(string(c.KeyFile))
	if err != nil {
		return nil, err
	}
	g, err := c.Geometry()
	if err != nil {
		return nil, err
	}
	n, err := icarus.NewNode(uint64(c.Node), uint8(c.Domain), key, g)
	if err != nil {
		return nil, err
	}
	n.Drop = c.Action == config.DropLoops
	return &run.Loop{Node: n, ID: uint64(c.Node), Edges: c.Edges}, nil
}

// readKey reads the domain's secret: 16 bytes, or 32 hexadecimal digits.
func readKey(path string) (key icarus.Key, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return key, fmt.Errorf("key: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return key, fmt.Errorf("key %s: mode %04o lets everybody at it, who could then forge filters: chmod o= %s",
			path, info.Mode().Perm(), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return key, fmt.Errorf("key: %w", err)
	}
	if len(text) != len(key) {
		if text, err = hex.DecodeString(strings.TrimSpace(string(text))); err != nil || len(text) != len(key) {
			return key, fmt.Errorf("key %s: want 32 hexadecimal digits, as `openssl rand -hex 16` gives, or 16 bytes", path)
		}
	}
	return icarus.Key(text), nil
}

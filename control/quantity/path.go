package quantity

import (
	"fmt"
	"path/filepath"
)

// Path is an absolute path, or "".
type Path string

// UnmarshalText reads an absolute path, or none.
func (p *Path) UnmarshalText(text []byte) error {
	if s := string(text); s != "" && !filepath.IsAbs(s) {
		return fmt.Errorf("%q: want an absolute path", text)
	}
	*p = Path(text)
	return nil
}

// MarshalText returns the path.
func (p Path) MarshalText() ([]byte, error) { return []byte(p), nil }

package share

import (
	"os"
	"path/filepath"
)

// Write writes the files below a directory, where they stand below /usr/share.
func (p Program) Write(dir string) error {
	name := p.Root.Name()
	files := map[string]func(path string) error{
		"bash-completion/completions/" + name:         func(path string) error { return p.Root.GenBashCompletionFileV2(path, true) },
		"fish/vendor_completions.d/" + name + ".fish": func(path string) error { return p.Root.GenFishCompletionFile(path, true) },
		"zsh/site-functions/_" + name:                 p.Root.GenZshCompletionFile,
	}
	for _, c := range documented(p.Root) {
		files[filepath.Join("man", "man"+manSection, manName(c)+"."+manSection)] = func(path string) error {
			return os.WriteFile(path, []byte(p.manPage(c)), 0o644)
		}
	}
	for name, write := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := write(path); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir/control/config"
	"weir/control/durable"
	"weir/control/fleet/authority"
)

// A backup is a compressed tar file: what it is, in JSON, then the directory of keys, then
// that of the state, without the broker's stream, which the hub makes anew.
const (
	aboutFile   = "weir-hub-backup.json"
	keysPrefix  = "keys"
	statePrefix = "state"
	brokerDir   = "broker"
	backupForm  = 1

	// copyTries is how often a directory is read again that has changed meanwhile.
	copyTries = 20
)

// about says what a backup is.
type about struct {
	Format  int       `json:"weir_hub_backup"`
	Time    time.Time `json:"time"`
	Version string    `json:"version"` // of weir-hub
}

func newBackup() *cobra.Command {
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a backup of keys and state",
		Long: `Writes a backup of the keys and the state of the hub, which may run meanwhile,
to a new file that only its owner may read; -, to standard output. It has
secrets, as the directory of keys does: who has it can be the fleet's hub.

What is not in it: hub.yaml, files that lists are read from, tokens of weir-hub
token and operator, and the broker's stream, which the hub makes anew.`,
		Example: "  weir-hub backup /root/hub.tar.gz\n  weir-hub backup - | ssh backup@vault 'umask 077; cat >hub.tar.gz'",
		Args:    exactly("FILE"),
	}
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if args[0] == "-" {
			h, _, err := openedAsOwner(*file)
			if err != nil {
				return err
			}
			return backup(c.OutOrStdout(), h)
		}
		h, err := config.LoadHub(*file)
		if err != nil {
			return err
		}
		to, err := create(args[0])
		if err != nil {
			return err
		}
		return to.end(whileOwner(string(h.Keys), func() error {
			if _, err := authority.Open(string(h.Keys)); err != nil {
				return err
			}
			return backup(to, h)
		}))
	}
	return c
}

// notState reports whether a file in the state directory does not belong to the state: the broker's
// stream, the directory of a restore, and lost+found of a volume, which only root may read.
func notState(name string) bool {
	return name == brokerDir || name == restoring || name == "lost+found"
}

// backups makes backups for standbys.
type backups struct{ of *config.Hub }

// Backup implements [hub.Backup].
func (b backups) Backup(to io.Writer) error { return backup(to, b.of) }

// backup writes a backup.
func backup(to io.Writer, h *config.Hub) error {
	if err := authority.CheckComplete(string(h.StateDir)); err != nil {
		return err
	}
	z := gzip.NewWriter(to)
	t := tar.NewWriter(z)
	text, err := json.Marshal(about{backupForm, time.Now().UTC(), version})
	if err != nil {
		return err
	}
	if err := add(t, aboutFile, append(text, '\n')); err != nil {
		return err
	}
	state := string(h.StateDir)
	first, err := os.ReadDir(state)
	if err != nil {
		return err
	}
	// Manual entries last: a list without one of them gets it when the hub starts.
	last := func(e fs.DirEntry) int {
		if e.IsDir() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(first, func(a, b fs.DirEntry) int { return last(a) - last(b) })
	if err := addAll(t, string(h.Keys), keysPrefix); err != nil {
		return err
	}
	for _, e := range first {
		if notState(e.Name()) {
			continue
		}
		if err := addAll(t, filepath.Join(state, e.Name()), path.Join(statePrefix, e.Name())); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func add(t *tar.Writer, name string, text []byte) error {
	err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now(), Format: tar.FormatPAX})
	if err == nil {
		_, err = t.Write(text)
	}
	return err
}

// addAll adds what is below a path.
func addAll(t *tar.Writer, from, name string) error {
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it has gone
	case err != nil:
		return err
	case info.Mode().IsRegular():
		text, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return add(t, name, text)
	case !info.IsDir():
		return nil // a socket
	}
	for range copyTries {
		var dirs []string
		texts := make(map[string][]byte)
		if dirs, err = readFiles(from, texts); err != nil {
			continue // a file has gone: the others are of different times
		}
		if err := t.WriteHeader(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o700, ModTime: time.Now(), Format: tar.FormatPAX}); err != nil {
			return err
		}
		for _, file := range slices.Sorted(maps.Keys(texts)) {
			if err := add(t, path.Join(name, file), texts[file]); err != nil {
				return err
			}
		}
		for _, dir := range dirs {
			if name == keysPrefix && (dir == authority.TokensDir || dir == authority.OperatorsDir) {
				continue
			}
			if err := addAll(t, filepath.Join(from, dir), path.Join(name, dir)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s changes all the time: %w", from, err)
}

// readFiles reads the files of a directory, and returns the directories in it.
func readFiles(dir string, texts map[string][]byte) (dirs []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		switch {
		case e.IsDir():
			dirs = append(dirs, e.Name())
		case e.Type().IsRegular():
			if texts[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	return dirs, nil
}

// restoring is the directory in the state directory to which a backup is unpacked.
const restoring = ".restore"

// restoredKeys is printed when the keys came from the backup.
const restoredKeys = `revoke again the nodes and sites that were revoked since then
enroll again the nodes that were enrolled, or enrolled anew, since then: the keys do not know what they have now, and it
stays good. The hub warns of each that connects to it: cut it off with weir hub revoke NODE --user KEY
`

func newRestore() *cobra.Command {
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a host the hub again from a backup",
		Long: `Unpacks a backup of weir-hub backup, - for standard input, to the directories
that the configuration names. The hub must not run, and its state_dir be empty
but for the broker's stream. Keys that are there already stay, if they are the
same fleet's: they may know of nodes that were enrolled or revoked since.

Where the keys come from the backup, the hub does not know who was enrolled or
revoked since: revoke those nodes again, and enroll the others again. Until then
their present credentials stay valid. The hub warns of each node that connects
with credentials that it does not know; weir hub revoke NODE --user KEY cuts
that node off.

When the hub starts, it compares what nodes have with what it has. It takes
manual entries since the backup back from the nodes, and weir fleet lost shows
what it cannot take back.`,
		Example: "  systemctl stop weir-hub\n  mv /var/lib/weir-hub /var/lib/weir-hub.old\n  weir-hub restore /root/hub.tar.gz\n  systemctl start weir-hub",
		Args:    exactly("FILE"),
	}
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		from := c.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			from = f
		}
		h, err := config.LoadHub(*file)
		if err != nil {
			return err
		}
		made, keys, err := restore(from, h)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "restored the backup of %s\n", made.Local().Format(time.DateTime))
		if !keys {
			fmt.Fprintf(c.OutOrStdout(), "the keys in %s stay as they were\n", h.Keys)
		} else {
			fmt.Fprint(c.OutOrStdout(), restoredKeys)
		}
		return nil
	}
	return c
}

// restore unpacks a backup. It reports when that was made, and whether its keys are taken.
func restore(from io.Reader, h *config.Hub) (made time.Time, keys bool, err error) {
	state, to := string(h.StateDir), string(h.Keys)
	if err := ownedAs(to, state); err != nil {
		return made, false, err
	}
	files, err := os.ReadDir(state)
	if err != nil {
		return made, false, err
	}
	files = slices.DeleteFunc(files, func(f fs.DirEntry) bool { return notState(f.Name()) })
	if authority.CheckComplete(state) == nil && len(files) > 0 {
		return made, false, fmt.Errorf("%s has the state of a hub: stop it, and move that away first: mv %s %s.old", state, state, state)
	}
	temporary := filepath.Join(state, restoring)
	if err := os.RemoveAll(temporary); err != nil {
		return made, false, err
	}
	defer os.RemoveAll(temporary)
	if made, err = unpack(from, temporary); err != nil {
		return made, false, fmt.Errorf("no backup of weir-hub, or a damaged one, nothing has changed: %w", err)
	}
	if keys, err = restoreKeys(filepath.Join(temporary, keysPrefix), to); err != nil {
		return made, false, err
	}
	if err := restoreState(filepath.Join(temporary, statePrefix), state); err != nil {
		return made, false, err
	}
	for _, dir := range []string{to, state} {
		if err := durable.Remove(filepath.Join(dir, authority.Incomplete)); err != nil {
			return made, false, err
		}
	}
	return made, keys, nil
}

// restoreKeys copies keys to a directory that has none, or only some of an interrupted restore, and leaves it marked
// as incomplete. Otherwise it checks that the keys there are the same fleet's, and reports false.
func restoreKeys(from, to string) (taken bool, err error) {
	backed, err := authority.Open(from)
	if err != nil {
		return false, err
	}
	there, err := os.ReadDir(to)
	if err != nil {
		return false, err
	}
	if len(there) > 0 && authority.CheckComplete(to) == nil {
		own, err := authority.Open(to)
		if err != nil {
			return false, err
		}
		if !own.PublicKey().Equal(backed.PublicKey()) {
			return false, fmt.Errorf("%s has the keys of another fleet: move them away first", to)
		}
		return false, nil
	}
	if err := begin(to, there); err != nil {
		return false, err
	}
	return true, copyAll(from, to)
}

// restoreState moves a state to a directory, and leaves that marked as incomplete.
func restoreState(from, to string) error {
	there, err := os.ReadDir(to)
	if err != nil {
		return err
	}
	if err := begin(to, slices.DeleteFunc(there, func(f fs.DirEntry) bool { return notState(f.Name()) })); err != nil {
		return err
	}
	all, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := durable.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// begin marks a directory as incomplete, and removes the files of an interrupted restore from it.
func begin(dir string, there []fs.DirEntry) error {
	if err := durable.MkdirAll(filepath.Join(dir, authority.Incomplete)); err != nil {
		return err
	}
	for _, f := range there {
		if f.Name() == authority.Incomplete {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// ownedAs makes the directories, and root act as the owner of the keys. Where only the directory
// of the state was there, its owner runs the hub, and gets the keys.
func ownedAs(keys, state string) error {
	from, to := keys, state
	if _, err := os.Stat(keys); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(state); err == nil {
			from, to = state, keys
		}
	}
	for _, dir := range []string{keys, state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := os.Chown(to, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return actAsOwner(keys)
}

// unpack unpacks a backup to a directory.
func unpack(from io.Reader, dir string) (made time.Time, err error) {
	return readBackup(from, func(h *tar.Header, text io.Reader) error {
		name := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			return durable.MkdirAll(name)
		}
		if err := durable.MkdirAll(filepath.Dir(name)); err != nil {
			return err
		}
		all, err := io.ReadAll(text)
		if err != nil {
			return err
		}
		return durable.WriteFile(name, all)
	})
}

// readBackup calls fn for each directory and file of a backup, and returns when that was made.
func readBackup(from io.Reader, fn func(*tar.Header, io.Reader) error) (made time.Time, err error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return made, err
	}
	t := tar.NewReader(z)
	for first := true; ; first = false {
		h, err := t.Next()
		if err == io.EOF && !first {
			_, err = io.Copy(io.Discard, z) // to the checksum
			return made, err
		}
		if err != nil {
			return made, err
		}
		if first {
			var a about
			text, err := io.ReadAll(io.LimitReader(t, 4096))
			if err == nil {
				err = json.Unmarshal(text, &a)
			}
			if err != nil || h.Name != aboutFile {
				return made, errors.Join(errors.New("it does not begin as one"), err)
			}
			if a.Format != backupForm {
				return made, fmt.Errorf("it has format %d, want %d: use the version of weir-hub that made it, %q", a.Format, backupForm, a.Version)
			}
			made = a.Time
			continue
		}
		below, _, _ := strings.Cut(h.Name, "/")
		if !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir || below != keysPrefix && below != statePrefix {
			return made, fmt.Errorf("it has a file %q", h.Name)
		}
		if err := fn(h, t); err != nil {
			return made, err
		}
	}
}

// copyAll copies the files below a directory to another one.
func copyAll(from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return durable.MkdirAll(filepath.Join(to, at))
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return durable.WriteFile(filepath.Join(to, at), text)
	})
}

package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// program is the program of an image.
type program struct {
	command  []string
	user     int // who runs it, and owns what is to be written
	dirs     []string
	licenses string
}

// programs are the programs in the images. weir runs as root, with the capabilities that the container
// gets: the BPF file system is root's.
var programs = map[string]program{
	"weir": {
		command:  []string{"run", "-c", "/etc/weir/weir.yaml"},
		dirs:     []string{"etc/weir", "run/weir", "var/lib/weir", "sys/fs/bpf"},
		licenses: "Apache-2.0 AND (BSD-2-Clause OR GPL-2.0-only)",
	},
	"weir-hub": {
		command:  []string{"run", "--config", "/etc/weir-hub/hub.yaml"},
		user:     65532,
		dirs:     []string{"etc/weir-hub", "etc/weir-hub/keys", "run/weir-hub", "var/lib/weir-hub"},
		licenses: "Apache-2.0",
	},
}

// image writes an OCI layout, as a tar archive, with an image for each architecture.
func image(name, version, commit, out string, roots []string) error {
	p, ok := programs[name]
	if !ok {
		return fmt.Errorf("no image %q", name)
	}
	at, err := epoch()
	if err != nil {
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    name,
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.revision": commit,
		"org.opencontainers.image.created":  at.Format(time.RFC3339),
		"org.opencontainers.image.licenses": p.licenses,
	}
	platforms := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range roots {
		arch, root, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=ROOT", arg)
		}
		content, err := layerOf(name, p, root, at)
		if err != nil {
			return err
		}
		layer, err := tarball.LayerFromOpener(
			func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		img, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "make release"}})
		if err != nil {
			return err
		}
		config, err := img.ConfigFile()
		if err != nil {
			return err
		}
		config = config.DeepCopy()
		config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: at}
		config.Config = v1.Config{
			Entrypoint: []string{"/usr/bin/" + name}, Cmd: p.command,
			Env: []string{"PATH=/usr/bin"}, Labels: labels,
		}
		if p.user != 0 {
			config.Config.User = fmt.Sprintf("%d:%d", p.user, p.user)
		}
		if img, err = mutate.ConfigFile(img, config); err != nil {
			return err
		}
		platforms = mutate.AppendManifests(platforms, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}

	dir, err := os.MkdirTemp(filepath.Dir(out), "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	top, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	if err := top.AppendIndex(platforms, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": name + ":" + version,
	})); err != nil {
		return err
	}
	return archive(dir, out, at)
}

// layerOf returns the only layer of an image: the binary, its license, authorities for
// HTTPS, and the directories that it uses.
func layerOf(name string, p program, root string, at time.Time) ([]byte, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	made := make(map[string]bool)
	mkdir := func(dir string, uid int) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, Uid: uid, Gid: uid, ModTime: at})
	}
	parents := func(name string) error {
		for i, c := range name {
			if dir := name[:i]; c == '/' && !made[dir] {
				made[dir] = true
				if err := mkdir(dir, 0); err != nil {
					return err
				}
			}
		}
		return nil
	}
	file := func(name string, mode int64, b []byte) error {
		if err := parents(name); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(b)), ModTime: at}); err != nil {
			return err
		}
		_, err := w.Write(b)
		return err
	}

	for _, dir := range p.dirs {
		if err := parents(dir); err != nil {
			return nil, err
		}
		made[dir] = true
		if err := mkdir(dir, p.user); err != nil {
			return nil, err
		}
	}
	if err := file("etc/ssl/certs/ca-certificates.crt", 0o644, authorities()); err != nil {
		return nil, err
	}
	doc := path.Join("usr/share/doc", name)
	for _, f := range []struct {
		name string
		mode int64
	}{{path.Join("usr/bin", name), 0o755}, {path.Join(doc, "copyright"), 0o644}, {path.Join(doc, "LICENSE"), 0o644}} {
		b, err := os.ReadFile(filepath.Join(root, f.name))
		if err != nil {
			return nil, err
		}
		if err := file(f.name, f.mode, b); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// authorities returns Mozilla's, of the version in go.mod, so that the image is the same wherever
// it is made. Those are left out that Mozilla trusts for some certificates only, which the
// format cannot say.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // never fails
		}
	}
	return all.Bytes()
}

// archive writes a directory as a tar archive, sorted, without owners.
func archive(dir, out string, at time.Time) (err error) {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := tar.NewWriter(file)
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error { // in lexical order
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: at})
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: at}); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}

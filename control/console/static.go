package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed static
var staticFiles embed.FS

// asset is a file of the page.
type asset struct {
	kind       string
	plain      []byte
	compressed []byte
}

// kinds are the types of files, whatever the host's mime.types says.
var kinds = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

// assets returns the files, by names that contain a digest of their contents, so that
// browsers may keep them, and these names by that of the file.
var assets = sync.OnceValues(func() (map[string]asset, map[string]string) {
	all, byFile := make(map[string]asset), make(map[string]string)
	_ = fs.WalkDir(staticFiles, "static", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Base(file) == "LICENSE" {
			return err
		}
		text, err := staticFiles.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		name := hex.EncodeToString(sum[:8]) + "-" + path.Base(file)
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
		_, _ = w.Write(text)                                  // into memory
		_ = w.Close()
		all[name] = asset{kinds[path.Ext(file)], text, b.Bytes()}
		byFile[path.Base(file)] = staticPath + name
		return nil
	})
	return all, byFile
})

// static answers with a file. It is the same for all, and needs no session.
func static(w http.ResponseWriter, q *http.Request) {
	all, _ := assets()
	a, ok := all[q.PathValue("name")]
	if !ok {
		http.NotFound(w, q)
		return
	}
	body := a.plain
	w.Header().Set("Vary", "Accept-Encoding")
	if strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
		body = a.compressed
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(body) // an error means that the client has gone
}

// staticURL returns the URL of a file of the page.
func staticURL(file string) string {
	_, names := assets()
	return names[file]
}

package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// The libraries are kept compressed: plain, they would be 0.3 % of weir's binary.
//
//go:embed static/*.css static/*.js static/*/*.gz
var staticFiles embed.FS

// asset is a file of the page, compressed.
type asset struct {
	kind       string
	compressed []byte
}

// kinds are the types of files, whatever the host's mime.types says.
var kinds = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

// assets returns the files, by names that contain a hash of their contents, so that
// browsers may keep them, and these names by that of the file.
var assets = sync.OnceValues(func() (map[string]asset, map[string]string) {
	all, byFile := make(map[string]asset), make(map[string]string)
	_ = fs.WalkDir(staticFiles, "static", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		contents, err := staticFiles.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(contents)
		plain, ready := strings.CutSuffix(path.Base(file), ".gz")
		if !ready {
			contents = compress(contents)
		}
		name := hex.EncodeToString(sum[:8]) + "-" + plain
		all[name] = asset{kinds[path.Ext(plain)], contents}
		byFile[plain] = staticPath + name
		return nil
	})
	return all, byFile
})

func compress(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	_, _ = w.Write(text)                                  // into memory
	_ = w.Close()
	return b.Bytes()
}

// static answers with a file. It is the same for all, and needs no session.
func static(w http.ResponseWriter, q *http.Request) {
	all, _ := assets()
	a, ok := all[q.PathValue("name")]
	if !ok {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	if strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(a.compressed)))
		_, _ = w.Write(a.compressed) // an error means that the client has gone
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(a.compressed))
	if err != nil {
		http.Error(w, "a file of this binary is broken", http.StatusInternalServerError)
		return
	}
	_, _ = io.Copy(w, plain)
}

// staticURL returns the URL of a file of the page.
func staticURL(file string) string {
	_, names := assets()
	return names[file]
}

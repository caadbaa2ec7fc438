package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom writes what a binary is made of, as CycloneDX: the modules that the linker has
// recorded in it, and the files that the console embeds, by the table in vendored.
func sbom(name, version, binary, vendored, out string) error {
	at, err := epoch()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	table, err := os.ReadFile(vendored)
	if err != nil {
		return err
	}
	embedded := pageFiles(string(table))
	if len(embedded) == 0 {
		return fmt.Errorf("%s: no table of the files of the page", vendored)
	}
	components := append(modules(info), embedded...)

	subject := cdx.Component{
		BOMRef: "pkg:generic/" + name + "@" + version, Type: cdx.ComponentTypeApplication,
		Name: name, Version: version, PackageURL: "pkg:generic/" + name + "@" + version,
		Hashes:   sha256Of(content),
		Licenses: &cdx.Licenses{{Expression: "Apache-2.0 AND (BSD-2-Clause OR GPL-2.0-only)"}},
	}
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: at.Format(time.RFC3339), Component: &subject, Properties: &[]cdx.Property{
		{Name: "goos", Value: setting(info, "GOOS")}, {Name: "goarch", Value: setting(info, "GOARCH")},
	}}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: subject.BOMRef, Dependencies: &refs}}

	file, err := os.Create(out)
	if err != nil {
		return err
	}
	encoder := cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	// Most readers know CycloneDX 1.5.
	return errors.Join(encoder.EncodeVersion(bom, cdx.SpecVersion1_5), file.Close())
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// modules returns Go's library and the modules of a binary.
func modules(info *debug.BuildInfo) []cdx.Component {
	library := func(path, version, sum string) cdx.Component {
		purl := "pkg:golang/" + path + "@" + version
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
		// The checksum of go.sum: that of a list of the module's files.
		if digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(digest) == sha256.Size {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(digest)}}
		}
		return c
	}
	all := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, library(m.Path, m.Version, m.Sum))
	}
	return all
}

// pageFile matches a row of the table of docs/dependencies.md: file, package, version, license and
// checksum.
var pageFile = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\S+) (\\S+) \\(([^)]+)\\) \\| `([0-9a-f]{64})` \\|")

func pageFiles(table string) []cdx.Component {
	var all []cdx.Component
	for _, row := range pageFile.FindAllStringSubmatch(table, -1) {
		purl := "pkg:npm/" + row[2] + "@" + row[3] + "#" + row[1]
		all = append(all, cdx.Component{
			BOMRef: purl, Type: cdx.ComponentTypeFile, Name: row[1], Version: row[3], PackageURL: purl,
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: row[5]}},
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: row[4]}}},
		})
	}
	return all
}

func sha256Of(content []byte) *[]cdx.Hash {
	sum := sha256.Sum256(content)
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
}

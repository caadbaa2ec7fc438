package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/tests/lab"
	"weir/tests/long"
)

const (
	epoch  = 1700000000 // of everything that is made here
	before = "0.0.9"    // the version that is upgraded
	commit = "0123456789abcdef0123456789abcdef01234567"
)

// release has the files that make release has made, with keys of its own.
type release struct {
	version    string
	dir        string
	repository string
	minisign   string // the public key's file
	otherKey   string // an OpenPGP key that has signed nothing
}

// A release is built, and installed by what its users install it with.
func TestRelease(t *testing.T) {
	long.Only(t, "builds a release twice, and makes a Debian system")
	lab.Root(t)
	for _, program := range []string{
		"gpg", "minisign", "apt-ftparchive", "createrepo_c", "rpm", "rpmsign", "dpkg-deb", "dnf",
	} {
		lab.Tool(t, program)
	}
	r := makeRelease(t)
	all := packagesIn(t, r.dir)
	t.Run("checksums", func(t *testing.T) { testChecksums(t, r) })
	t.Run("notes", func(t *testing.T) { testNotes(t, r) })
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run("archive "+arch, func(t *testing.T) { testArchive(t, r, arch) })
	}
	for _, name := range names {
		t.Run("deb "+name, func(t *testing.T) { testDeb(t, name, r.version, all[name].deb) })
		t.Run("rpm "+name, func(t *testing.T) { testRPM(t, name, r.version, all[name].rpm) })
		t.Run("image "+name, func(t *testing.T) { testImage(t, r, name) })
		t.Run("bill of materials "+name, func(t *testing.T) { testMaterials(t, r, name) })
	}
	t.Run("chart", func(t *testing.T) { testChart(t, r) })
	t.Run("refused", testRefused)
	t.Run("deb lifecycle", func(t *testing.T) { testDebLifecycle(t, all) })
	t.Run("dnf", func(t *testing.T) { testDnf(t, r) })
	t.Run("container", func(t *testing.T) { testContainer(t, r) })
	t.Run("service", func(t *testing.T) { testService(t, r) })
}

// makeRelease makes a release twice, from two directories, which must not differ, on top of the
// packages of the version before.
func makeRelease(t *testing.T) *release {
	t.Helper()
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)( |$)`).FindSubmatch(changelog)
	if newest == nil {
		t.Fatal("CHANGELOG.md has no release")
	}
	r := &release{version: string(newest[1])}

	// The keys are older than what they sign.
	keys := t.TempDir()
	r.minisign = filepath.Join(keys, "minisign.pub")
	secret := filepath.Join(keys, "minisign.key")
	output(t, exec.Command("minisign", "-G", "-W", "-p", r.minisign, "-s", secret))
	home := filepath.Join(keys, "gpg")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--kill", "all").Run() })
	for _, name := range []string{"Releases <releases@localhost>", "Other <other@localhost>"} {
		output(t, exec.Command("gpg", "--batch", "--quiet", "--faked-system-time", strconv.Itoa(epoch-1000), "--passphrase", "",
			"--quick-generate-key", name, "ed25519", "sign", "never"))
	}
	r.otherKey = output(t, exec.Command("gpg", "--batch", "--armor", "--export", "other@localhost"))

	published, old := t.TempDir(), packages(t, "v"+before)
	for _, kind := range []struct{ pattern, dir string }{{"*.deb", "apt/pool"}, {"*.rpm", "rpm"}} {
		dir := filepath.Join(published, kind.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		output(t, exec.Command("bash", "-c", "cp "+filepath.Join(old, kind.pattern)+" "+dir))
	}

	build := func(published string, setting ...string) string {
		dir := sources(t)
		out := t.TempDir()
		cmd := exec.Command("bash", "-c", `umask $UMASK && exec make -s release`)
		cmd.Dir = dir
		cmd.Env = slices.Concat(os.Environ(), setting, []string{
			"VERSION=v" + r.version, "COMMIT=" + commit, "SOURCE_DATE_EPOCH=" + strconv.Itoa(epoch),
			"KEY=" + secret, "GPG_KEY=releases@localhost", "PUBLISHED=" + published, "OUT=" + out,
		})
		output(t, cmd)
		return filepath.Join(out, "dist/release")
	}
	r.dir = build(published, "UMASK=022", "TZ=UTC")
	// What is published already may be released again, if it is the same.
	again := build(filepath.Join(r.dir, "repository"), "UMASK=077", "TZ=Pacific/Kiritimati", "LC_ALL=C.UTF-8")
	if out, err := exec.Command("diff", "--recursive", "--brief", r.dir, again).CombinedOutput(); err != nil {
		t.Errorf("two builds differ: %v\n%s", err, out)
	}
	r.repository = filepath.Join(r.dir, "repository")
	return r
}

// sources copies what is or would be committed, and returns the directory.
func sources(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	cp := exec.Command("xargs", "--null", "cp", "--parents", "--no-dereference", "--target-directory="+dir)
	cp.Dir, cp.Stdin = root, bytes.NewReader(files)
	output(t, cp)
	return dir
}

// The checksums cover all files, and are signed.
func testChecksums(t *testing.T, r *release) {
	check := exec.Command("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	check.Dir = r.dir
	output(t, check)
	sums, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	var summed []string
	for line := range strings.Lines(string(sums)) {
		summed = append(summed, strings.Fields(line)[1])
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), "SHA256SUMS") && !slices.Contains(summed, e.Name()) {
			t.Errorf("no checksum of %s", e.Name())
		}
	}

	verify := func(content []byte) error {
		dir := t.TempDir()
		signature, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS.minisig"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "SHA256SUMS"), string(content), 0o644)
		write(t, filepath.Join(dir, "SHA256SUMS.minisig"), string(signature), 0o644)
		return exec.Command("minisign", "-V", "-q", "-p", r.minisign, "-m", filepath.Join(dir, "SHA256SUMS")).Run()
	}
	if err := verify(sums); err != nil {
		t.Errorf("the signature: %v", err)
	}
	if verify(append(sums, '\n')) == nil {
		t.Error("the signature is also that of other checksums")
	}
}

// What is no release is refused, and nothing is made.
func testRefused(t *testing.T) {
	dir := sources(t)
	for version, want := range map[string]string{"1.2.3": "is not the version", "v1.2.3-4-gabc": "is not the version", "v99.0.0": `no section "## 99.0.0"`} {
		out := t.TempDir()
		cmd := exec.Command("make", "-s", "release", "VERSION="+version, "COMMIT="+commit, "SOURCE_DATE_EPOCH="+strconv.Itoa(epoch), "OUT="+out)
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", version, err, text)
		}
		if files := listed(t, out); len(files) > 0 {
			t.Errorf("%s: made %q", version, files)
		}
	}
	out := t.TempDir()
	write(t, filepath.Join(out, "dist/release/repository/apt/pool/weir.deb"), "", 0o644)
	for _, c := range []struct{ setting, want string }{
		{"GPG_KEY=releases@localhost", "is newer than the commit"},
		{"GPG_KEY=none@localhost", "no secret key"},
		{"PUBLISHED=" + out + "/dist/release/repository", "move it"},
		{"PUBLISHED=" + out, "has no apt/pool"},
	} {
		cmd := exec.Command("make", "-s", "release", "VERSION=v0.1.0", "COMMIT="+commit, "SOURCE_DATE_EPOCH=1", "OUT="+out, c.setting)
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %v\n%s", c.setting, err, text)
		}
	}
	if !exists(t, filepath.Join(out, "dist/release/repository/apt/pool/weir.deb")) {
		t.Error("what was published is gone")
	}
}

// The chart is of the release's version, and has the rules and the dashboard in it.
func testChart(t *testing.T, r *release) {
	dir := t.TempDir()
	output(t, exec.Command("tar", "--directory", dir, "--extract", "--file", filepath.Join(r.dir, "weir-"+r.version+".tgz")))
	for name, want := range map[string]string{"Chart.yaml": "\nappVersion: " + r.version + "\n", "files/alerts.yaml": "\ngroups:\n", "files/dashboard.json": `"uid": "weir"`} {
		text, err := os.ReadFile(filepath.Join(dir, "weir", name))
		if info, errInfo := os.Lstat(filepath.Join(dir, "weir", name)); err != nil || errInfo != nil || !info.Mode().IsRegular() || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %v\n%.300s", name, err, info, text)
		}
	}
}

func testNotes(t *testing.T, r *release) {
	notes, err := os.ReadFile(filepath.Join(r.dir, "RELEASE_NOTES.md"))
	if err != nil || !bytes.HasPrefix(notes, []byte("# weir "+r.version+"\n\n")) || bytes.Contains(notes, []byte("\n## ")) || len(notes) < 100 {
		t.Errorf("release notes, %v:\n%.300s", err, notes)
	}
}

// machines are the architectures, as in the binaries.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// static checks that a binary is for an architecture, and needs no library.
func static(t *testing.T, path, arch string) {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if libraries, err := file.ImportedLibraries(); file.Machine != machines[arch] || err != nil || len(libraries) > 0 {
		t.Errorf("%s: %v with %q, %v", path, file.Machine, libraries, err)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s: needs an interpreter", path)
		}
	}
}

// command runs a binary of an architecture, which QEMU emulates where it is another.
func command(t *testing.T, arch, program string, args ...string) *exec.Cmd {
	t.Helper()
	if arch == runtime.GOARCH {
		return exec.Command(program, args...)
	}
	emulator := "qemu-" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
	lab.Tool(t, emulator)
	return exec.Command(emulator, append([]string{program}, args...)...)
}

// pcap returns a capture of frames.
func pcap(frames ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint16(b, 2) // version 2.4
	b = binary.LittleEndian.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 1 << 16, 1} { // time zone, accuracy, length, Ethernet
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, frame := range frames {
		n := uint32(len(frame))
		for _, v := range []uint32{epoch, 0, n, n} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		b = append(b, frame...)
	}
	return b
}

// The archive may be unpacked below /usr/local.
func testArchive(t *testing.T, r *release, arch string) {
	name := "weir-" + r.version + "-linux-" + arch
	dir := t.TempDir()
	output(t, exec.Command("tar", "--directory", dir, "--extract", "--file", filepath.Join(r.dir, name+".tar.gz")))
	files := listed(t, filepath.Join(dir, name))
	for _, want := range []string{
		"/bin/weir", "/bin/weir-hub", "/lib/systemd/system/weir.service", "/lib/sysusers.d/weir.conf", "/share/man/man8/weir.8",
		"/share/doc/weir/LICENSE", "/share/doc/weir/copyright", "/share/doc/weir/weir.yaml", "/share/doc/weir-hub/copyright",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("no %s in %q", want, files)
		}
	}
	for _, program := range names {
		path := filepath.Join(dir, name, "bin", program)
		static(t, path, arch)
		if got := output(t, command(t, arch, path, "--version")); !strings.HasPrefix(got, program+" v"+r.version) {
			t.Errorf("got %q", got)
		}
	}
	// It matches by the same hashes: a listed packet of two, from a list of many.
	list, capture := filepath.Join(dir, "list"), filepath.Join(dir, "capture")
	var entries strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&entries, "11.%d.%d.0/24\n2a00:%x::/32\n", i/256, i%256, i)
	}
	write(t, list, entries.String()+listedSource+"\n", 0o644)
	write(t, capture, string(pcap(frameFrom(listedSource), frameFrom(cleanSource))), 0o644)
	var replayed struct{ Verdicts map[string]int }
	replay := command(t, arch, filepath.Join(dir, name, "bin/weir"), "replay", "--engine", "go", "--block", list, "--json", capture)
	out, err := replay.Output()
	if err != nil || json.Unmarshal(out, &replayed) != nil || replayed.Verdicts["drop"] != 1 || replayed.Verdicts["pass"] != 1 {
		t.Errorf("replayed: %v\n%s", err, out)
	}
	if unit, err := os.ReadFile(filepath.Join(dir, name, "lib/systemd/system/weir.service")); err != nil || !bytes.Contains(unit, []byte("ExecStart=weir run")) {
		t.Errorf("the unit: %v\n%s", err, unit)
	}
	if arch == "amd64" { // the same for all
		testMan(t, filepath.Join(dir, name, "share"), r.version)
	}
}

// What make man has made can be read by those who read it: manual pages and completions, below share.
func testMan(t *testing.T, share, version string) {
	lab.Tool(t, "man")
	pages, err := filepath.Glob(filepath.Join(share, "man/man[58]/*.[58]"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("pages %q, %v", pages, err)
	}
	for name, want := range map[string]string{
		"man/man5/weir.yaml.5": "lists.NAME.sources[].sha256_url", "man/man5/hub.yaml.5": "broker.listen",
		"man/man8/weir-hub.8": "/etc/weir-hub/keys", "man/man5/weir-lists.5": "tcp [2001:db8::/32]:* > [2001:db8:1::7]:443\n",
	} {
		cmd := exec.Command("man", "--local-file", filepath.Join(share, name))
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80")
		if text := output(t, cmd); !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", name, want, text)
		}
	}
	for _, page := range pages {
		cmd := exec.Command("man", "--warnings", "--encoding=UTF-8", "--local-file", page)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80", "MANROFFOPT=")
		var warnings strings.Builder
		cmd.Stderr = &warnings
		text, err := cmd.Output()
		if err != nil || warnings.Len() > 0 || !strings.Contains(string(text), "weir v"+version) {
			t.Errorf("%s: %v\n%s%s", filepath.Base(page), err, warnings.String(), text)
		}
	}
	for _, shell := range []struct{ name, script string }{
		{"bash", "bash-completion/completions/weir"},
		{"zsh", "zsh/site-functions/_weir"},
		{"fish", "fish/vendor_completions.d/weir.fish"},
		{"bash", "bash-completion/completions/weir-hub"},
	} {
		if _, err := exec.LookPath(shell.name); err != nil {
			t.Logf("%s: not here, and its script not read", shell.name)
			continue
		}
		output(t, exec.Command(shell.name, "-n", filepath.Join(share, shell.script)))
	}
}

// testMaterials compares bills of materials with what the linker has recorded, and with the page.
func testMaterials(t *testing.T, r *release, name string) {
	for arch := range machines {
		unpacked := t.TempDir()
		output(t, exec.Command("tar", "--directory", unpacked, "--strip-components=1", "--extract",
			"--file", filepath.Join(r.dir, "weir-"+r.version+"-linux-"+arch+".tar.gz")))
		program := filepath.Join(unpacked, "bin", name)
		text, err := os.ReadFile(filepath.Join(r.dir, name+"-"+r.version+"-"+arch+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		type component struct {
			Name, Version, Purl string
			Hashes              []struct{ Content string }
		}
		var bom struct {
			BOMFormat   string
			SpecVersion string
			Metadata    struct {
				Timestamp string
				Component component
			}
			Components []component
		}
		if err := json.Unmarshal(text, &bom); err != nil || bom.BOMFormat != "CycloneDX" || bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
			t.Fatalf("%v\n%.1000s", err, text)
		}
		content, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if c := bom.Metadata.Component; c.Name != name || c.Version != r.version || len(c.Hashes) != 1 || c.Hashes[0].Content != hex.EncodeToString(sum[:]) {
			t.Errorf("it is of %+v, not of the binary", c)
		}
		var got []string
		for _, c := range bom.Components {
			got = append(got, c.Name+" "+c.Version)
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			want = append(want, m.Path+" "+m.Version)
		}
		page, err := filepath.Glob(filepath.Join(root, "control/console/static/*/LICENSE"))
		if err != nil || len(want) < 10 || len(page) == 0 || !slices.Equal(got[:len(want)], want) || len(got) < len(want)+len(page) {
			t.Errorf("%s, %v: components %q, want %q, and those of the page", arch, err, got, want)
		}
	}
}

// dnf installs, upgrades and removes by the signed repository, and refuses what was changed.
func testDnf(t *testing.T, r *release) {
	dir := t.TempDir()
	repository := filepath.Join(dir, "rpm")
	output(t, exec.Command("cp", "-r", filepath.Join(r.repository, "rpm"), repository))
	// As in docs/start.md.
	write(t, filepath.Join(dir, "repos/weir.repo"), "[weir]\nname=weir\nbaseurl=file://"+repository+
		"\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://"+filepath.Join(r.repository, "weir.asc")+"\n", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "root")
	dnf := func(args ...string) error {
		// Scripts would need a shell there; testScripts and the deb run them.
		cmd := exec.Command("dnf", append([]string{
			"--quiet", "--assumeyes", "--releasever=1", "--installroot=" + target, "--setopt=reposdir=" + filepath.Join(dir, "repos"),
			"--setopt=cachedir=" + filepath.Join(dir, "cache"), "--setopt=logdir=" + filepath.Join(dir, "log"),
			"--setopt=metadata_expire=0", "--setopt=tsflags=noscripts", "--setopt=install_weak_deps=False",
		}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		return nil
	}
	do := func(args ...string) {
		t.Helper()
		if err := dnf(args...); err != nil {
			t.Fatalf("dnf %q: %v", args, err)
		}
	}
	installed := func() string {
		out, err := exec.Command("rpm", "--root", target, "--query", "weir", "--queryformat", "%{VERSION}").Output()
		if err != nil {
			return ""
		}
		return string(out)
	}

	// The packages of the version before are not signed, as those of a release are.
	if err := dnf("install", "weir-"+before); err == nil || !strings.Contains(err.Error(), "is not signed") {
		t.Errorf("a package without a signature: %v", err)
	}
	do("install", "--nogpgcheck", "weir-"+before)
	if got := installed(); got != before {
		t.Fatalf("installed is %q", got)
	}
	do("upgrade")
	if got := installed(); got != r.version {
		t.Errorf("upgraded to %q", got)
	}
	if info, err := os.Stat(filepath.Join(target, "usr/bin/weir")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the binary: %v, %v", info, err)
	}
	do("remove", "weir")
	if got := installed(); got != "" || exists(t, filepath.Join(target, "usr/bin/weir")) {
		t.Errorf("after the removal, installed is %q", got)
	}

	index := filepath.Join(repository, "repodata/repomd.xml")
	text, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	write(t, index, string(text)+"\n", 0o644)
	if err := dnf("--refresh", "--setopt=weir.skip_if_unavailable=False", "install", "weir"); err == nil || !strings.Contains(err.Error(), "GPG") {
		t.Errorf("an index that was changed: %v", err)
	}
}

// descriptor refers to a blob of an image.
type descriptor struct {
	Digest      string
	Platform    struct{ Architecture string }
	Annotations map[string]string
}

// unpackImage unpacks the image of an architecture, and returns its configuration.
func unpackImage(t *testing.T, archive, arch, to string) (config struct {
	Architecture string
	Config       struct {
		Entrypoint, Cmd []string
		User            string
		Labels          map[string]string
	}
}) {
	t.Helper()
	blobs := make(map[string][]byte)
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if blobs[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	decode := func(name string, to any) {
		t.Helper()
		if err := json.Unmarshal(blobs[name], to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(d descriptor) string {
		t.Helper()
		algorithm, digest, _ := strings.Cut(d.Digest, ":")
		name := path.Join("blobs", algorithm, digest)
		if sum := sha256.Sum256(blobs[name]); hex.EncodeToString(sum[:]) != digest {
			t.Fatalf("%s: its contents have another checksum", name)
		}
		return name
	}
	var index, platforms struct{ Manifests []descriptor }
	decode("index.json", &index)
	decode(blob(index.Manifests[0]), &platforms)
	at := slices.IndexFunc(platforms.Manifests, func(d descriptor) bool { return d.Platform.Architecture == arch })
	if len(index.Manifests) != 1 || at < 0 {
		t.Fatalf("%s: %+v, %+v", archive, index, platforms)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(blob(platforms.Manifests[at]), &manifest)
	decode(blob(manifest.Config), &config)
	if len(manifest.Layers) != 1 {
		t.Fatalf("%d layers", len(manifest.Layers))
	}
	layer, err := gzip.NewReader(bytes.NewReader(blobs[blob(manifest.Layers[0])]))
	if err != nil {
		t.Fatal(err)
	}
	untar := exec.Command("tar", "--directory", to, "--extract", "--same-owner", "--same-permissions")
	untar.Stdin = layer
	output(t, untar)
	return config
}

// An image has the binary and the little that it needs.
func testImage(t *testing.T, r *release, name string) {
	for arch := range machines {
		dir := t.TempDir()
		config := unpackImage(t, filepath.Join(r.dir, name+"-"+r.version+"-oci.tar"), arch, dir)
		want := []string{
			"/etc/ssl/certs/ca-certificates.crt", "/usr/bin/" + name,
			"/usr/share/doc/" + name + "/LICENSE", "/usr/share/doc/" + name + "/copyright",
		}
		if got := listed(t, dir); !slices.Equal(got, want) {
			t.Errorf("%s: files %q, want %q", arch, got, want)
		}
		static(t, filepath.Join(dir, "usr/bin", name), arch)
		if config.Architecture != arch || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/" + name}) ||
			config.Config.Cmd[0] != "run" || (config.Config.User == "") != (name == "weir") ||
			config.Config.Labels["org.opencontainers.image.revision"] != commit || config.Config.Labels["org.opencontainers.image.version"] != r.version {
			t.Errorf("%s: %+v", arch, config)
		}
		roots, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
		if n := bytes.Count(roots, []byte("BEGIN CERTIFICATE")); err != nil || n < 50 {
			t.Errorf("%d authorities, %v", n, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "etc")); err != nil || info.Mode() != 0o755|fs.ModeDir {
			t.Errorf("/etc: %v, %v", info, err)
		}
	}
}

# `make help` prints what stands after ##.

SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT    ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
FUZZTIME  ?= 2m
TESTFLAGS ?=

# Where build, man and packages put what they make.
OUT     ?= .
# Where install puts it.
PREFIX  ?= /usr/local
DESTDIR ?=

# systemd looks for its files below these prefixes and in /etc, and for programs below
# these prefixes only.
ifneq ($(filter /usr /usr/local,$(PREFIX)),)
SYSTEMD := $(PREFIX)/lib
else
SYSTEMD := /etc
PROGRAMS := $(PREFIX)/bin/
endif

# Everything is pure Go, so that building and running needs no C compiler.
export CGO_ENABLED := 0

# The committed objects are compared byte for byte with fresh ones: the
# compiler's version is part of their source.
LLVM         := 19
CLANG        ?= clang-$(LLVM)
STRIP        ?= llvm-strip-$(LLVM)
OBJCOPY      ?= llvm-objcopy-$(LLVM)
CLANG_FORMAT ?= clang-format-$(LLVM)
export BPF2GO_CC    := $(CLANG)
export BPF2GO_STRIP := $(CURDIR)/bpf/strip
export STRIP
export OBJCOPY
# Debian keeps asm/ in a directory that clang does not search for the bpf target.
export BPF2GO_CFLAGS := -idirafter /usr/include/$(shell uname -m)-linux-gnu

# Without symbols, half the size; stack traces keep their names and lines.
BUILDFLAGS := -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

# The C of the data plane, and of the benchmark.
C_DIRS    := bpf tests/bench/probe
GENERATED := $(foreach dir,$(C_DIRS),$(dir)/*_bpfe[lb].go $(dir)/*_bpfe[lb].o*)

# Runs go test, and says how to repeat what failed. TIMES=FILE has it write down how long each
# test took; the argument is more flags of check. Lint vets, and the symbols (-s) and the debug
# information (-w) of some 60 binaries take long to link.
gotest = dist/check test $(if $(TIMES),-times $(TIMES)) $(1) $(TESTFLAGS) -vet=off '-ldflags=-s -w'
GOTEST = $(gotest)

# Modules of tests/, whose heavy dependencies are not weir's: GOWORK joins them with weir's.
MODULES := ./tests/bench/filters/... ./tests/browser/... ./tests/man/...
WORK    := $(CURDIR)/tests/modules.work

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build ./weir and ./weir-hub
	@echo 'building weir and weir-hub'
	@go build $(BUILDFLAGS) -o $(OUT)/weir ./cmd/weir
	@go build $(BUILDFLAGS) -o $(OUT)/weir-hub ./cmd/weir-hub

.PHONY: man
man: ## make the man pages, and what shells complete commands with, in ./dist/share*
	env -u GOARCH go run $(BUILDFLAGS) ./cmd/weir share $(OUT)/dist/share
	env -u GOARCH go run $(BUILDFLAGS) ./cmd/weir-hub share $(OUT)/dist/share-hub
	GOWORK=$(WORK) env -u GOARCH go run ./tests/man $(OUT)/dist/share $(OUT)/dist/share-hub $(VERSION)

# It makes nothing, since root may have no Go.
.PHONY: install
install: install-weir install-hub ## install what build and man have made, below PREFIX (as root)

.PHONY: made
made:
	@for made in $(OUT)/weir $(OUT)/weir-hub $(OUT)/dist/share $(OUT)/dist/share-hub; do \
		[ -e $$made ] || { echo "$$made: not there: make build man" >&2; exit 1; }; \
	done

.PHONY: install-weir
install-weir: made ## install weir, without the hub of a fleet (as root)
	install -D -m 0755 $(OUT)/weir $(DESTDIR)$(PREFIX)/bin/weir
	cd $(OUT)/dist/share && find . -type f -exec install -D -m 0644 {} $(DESTDIR)$(PREFIX)/share/{} \;
	install -D -m 0644 -t $(DESTDIR)$(SYSTEMD)/systemd/system cmd/weir/packaging/*.service
	sed -i -E 's|^(Exec[A-Za-z]*=)weir |\1$(PROGRAMS)weir |' $(DESTDIR)$(SYSTEMD)/systemd/system/weir.service
	install -D -m 0644 cmd/weir/packaging/weir.sysusers $(DESTDIR)$(SYSTEMD)/sysusers.d/weir.conf
	install -D -m 0644 cmd/weir/packaging/weir.tmpfiles $(DESTDIR)$(SYSTEMD)/tmpfiles.d/weir.conf
	install -d -m 0750 $(DESTDIR)/etc/weir
	install -d -m 0755 $(DESTDIR)/etc/weir/allow.d
	[ -e $(DESTDIR)/etc/weir/weir.yaml ] || \
		install -m 0644 control/config/weir.yaml $(DESTDIR)/etc/weir/weir.yaml
	[ -e $(DESTDIR)/etc/fail2ban/action.d/weir.py ] || \
		install -D -m 0644 cmd/weir/packaging/fail2ban.py $(DESTDIR)/etc/fail2ban/action.d/weir.py
	[ -n '$(DESTDIR)' ] || cmd/weir/packaging/postinstall

.PHONY: install-hub
install-hub: made ## install the hub of a fleet (as root)
	install -D -m 0755 $(OUT)/weir-hub $(DESTDIR)$(PREFIX)/bin/weir-hub
	cd $(OUT)/dist/share-hub && find . -type f -exec install -D -m 0644 {} $(DESTDIR)$(PREFIX)/share/{} \;
	install -D -m 0644 -t $(DESTDIR)$(SYSTEMD)/systemd/system cmd/weir-hub/packaging/weir-hub.service
	sed -i -E 's,^(Exec[A-Za-z]*=)(weir|weir-hub) ,\1$(PROGRAMS)\2 ,' $(DESTDIR)$(SYSTEMD)/systemd/system/weir-hub.service
	install -D -m 0644 cmd/weir-hub/packaging/weir-hub.sysusers $(DESTDIR)$(SYSTEMD)/sysusers.d/weir-hub.conf
	install -D -m 0644 cmd/weir-hub/packaging/weir-hub.tmpfiles $(DESTDIR)$(SYSTEMD)/tmpfiles.d/weir-hub.conf
	install -d -m 0750 $(DESTDIR)/etc/weir-hub
	install -d -m 0700 $(DESTDIR)/etc/weir-hub/keys
	[ -e $(DESTDIR)/etc/weir-hub/hub.yaml ] || \
		install -m 0644 control/config/hub.yaml $(DESTDIR)/etc/weir-hub/hub.yaml
	[ -n '$(DESTDIR)' ] || cmd/weir-hub/packaging/postinstall

.PHONY: uninstall
uninstall: ## stop filtering and remove what was installed, but configuration and state (as root)
	[ -n '$(DESTDIR)' ] || PATH="$(PREFIX)/bin:$$PATH" cmd/weir/packaging/preremove remove
	[ -n '$(DESTDIR)' ] || cmd/weir-hub/packaging/preremove remove
	cd $(DESTDIR)$(PREFIX) && rm -f bin/weir bin/weir-hub share/man/man8/weir.8 share/man/man8/weir-*.8 \
		share/man/man5/weir.yaml.5 share/man/man5/hub.yaml.5 share/man/man5/weir-lists.5 \
		share/bash-completion/completions/weir{,-hub} share/fish/vendor_completions.d/weir{,-hub}.fish \
		share/zsh/site-functions/_weir{,-hub}
	cd $(DESTDIR)$(SYSTEMD) && rm -f systemd/system/weir{,-pins,-hub}.service \
		sysusers.d/weir{,-hub}.conf tmpfiles.d/weir{,-hub}.conf
	[ -n '$(DESTDIR)' ] || cmd/weir/packaging/postremove remove
	[ -n '$(DESTDIR)' ] || cmd/weir-hub/packaging/postremove remove

# Not in go.mod: it would bring along several times what weir needs.
NFPM := go tool -modfile=tests/tools/nfpm/go.mod nfpm

# As dpkg and rpm want them, and sort them: v1.2.3-4-gabc is 1.2.3+4.gabc, past
# 1.2.3, and v1.2.3-rc1 is 1.2.3~rc1, before it. As long as no release is tagged,
# abc is 0.1.0~git20261120.134606.abc, by the time of the commit: before 0.1.0.
SNAPSHOT := $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d.%H%M%S 2>/dev/null || date -u +%Y%m%d.%H%M%S)
PACKAGE_VERSION := $(shell sed -E 's/^v//; /^[0-9]+\./!s/^/0.1.0~git$(SNAPSHOT)./; \
	s/-(alpha|beta|rc)/~\1/; s/-/+/; s/-/./g' <<<'$(VERSION)')

# The licenses of the modules that a command is linked with.
define licenses
	{ echo "Go $$(go env GOROOT)"; \
		go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' $(1); } \
		| sort -u | while read -r module dir; do \
			printf '\n\n%s:\n\n' "$$module"; \
			find "$$dir" -maxdepth 2 -type f -ipath '*/license*' | LC_ALL=C sort | xargs cat; \
		done >>$(2)/copyright
endef

# Packages and releases are reproducible: the same commit makes the same bytes.
packed release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)

.PHONY: packages
packages: build man ## make debs and rpms in ./dist (fetches nfpm)
	$(MAKE) packed

# Makes packages of the results of build and man.
.PHONY: packed
packed: root := $(abspath $(OUT)/dist/root)
packed: doc := $(root)/weir/usr/share/doc/weir
packed: hubdoc := $(root)/weir-hub/usr/share/doc/weir-hub
packed: made
	rm -rf $(root) $(OUT)/dist/weir_*.deb $(OUT)/dist/weir-*.rpm $(OUT)/dist/weir-hub_*.deb
	$(MAKE) install-weir DESTDIR=$(root)/weir PREFIX=/usr
	$(MAKE) install-hub DESTDIR=$(root)/weir-hub PREFIX=/usr
	gzip -9n $(root)/*/usr/share/man/man?/*
	install -D -m 0644 -t $(doc) cmd/weir/packaging/copyright LICENSE \
		bpf/LICENSE.BSD-2-Clause bpf/LICENSE.GPL-2.0 control/config/weir.schema.json \
		docs/*.md
	install -D -m 0644 -t $(doc)/api docs/api/*
	install -D -m 0644 -t $(doc)/hosts docs/hosts/*
	install -D -m 0644 -t $(doc)/observability docs/observability/*
	install -D -m 0644 -t $(hubdoc) cmd/weir-hub/packaging/copyright LICENSE \
		control/config/hub.schema.json control/config/hub.yaml docs/fleet.md
	$(call licenses,./cmd/weir,$(doc))
	for file in control/console/static/*/LICENSE; do \
		printf '\n\n%s:\n\n' "$$file"; cat "$$file"; \
	done >>$(doc)/copyright
	$(call licenses,./cmd/weir-hub,$(hubdoc))
	for package in weir weir-hub; do \
		for packager in deb rpm; do \
			ROOT=$(root)/$$package VERSION=$(PACKAGE_VERSION) ARCH=$$(go env GOARCH) \
				env -u GOARCH $(NFPM) package --config cmd/$$package/packaging/nfpm.yaml \
				--packager $$packager --target $(OUT)/dist; \
		done; \
	done

.PHONY: release
# KEY, GPG_KEY and PUBLISHED are arguments of the script, which describes them.
release: export VERSION := $(VERSION)
release: export COMMIT := $(COMMIT)
release: ## make all files of a release in ./dist/release (VERSION, KEY, GPG_KEY; see docs/releasing.md)
	KEY='$(KEY)' GPG_KEY='$(GPG_KEY)' PUBLISHED='$(PUBLISHED)' tests/tools/release/release $(OUT)/dist/release

.PHONY: llvm
llvm:
	@for tool in $(CLANG) $(STRIP) $(OBJCOPY); do \
		$$tool --version 2>/dev/null | grep -q 'version $(LLVM)\.' || { \
			echo "$$tool: not found, or not of LLVM $(LLVM), which made the committed objects" \
				"(on Debian: apt-get install clang-$(LLVM) llvm-$(LLVM))" >&2; \
			exit 1; \
		}; \
	done

# The programs are compiled beside each other: an argument of -run, and where. They are compressed
# together.
define go_generate
	printf '%s\n' 'weir.bpf.c ./bpf' 'weir_tc.bpf.c ./bpf' '. ./tests/bench/probe' | xargs -P 4 -L 1 go generate -run
	go generate -run ./compress ./bpf
endef

.PHONY: generate
generate: llvm ## compile the C and generate its Go (needs clang)
	$(go_generate)

.PHONY: check-generated
check-generated: llvm ## fail when what generate makes is not what is committed
	@git ls-files -z -- $(GENERATED:%='%') | xargs -0 rm -f
	$(go_generate)
	@stale=$$(git diff --name-only -- $(GENERATED:%='%'); \
		git ls-files --others -- $(GENERATED:%='%')); \
	if [ -n "$$stale" ]; then \
		printf 'stale, or not committed (run make generate and commit):\n%s\n' "$$stale" >&2; \
		exit 1; \
	fi

.PHONY: fmt
fmt: ## format the Go and the C
	gofmt -w .
	find $(C_DIRS) -name '*.[ch]' -exec $(CLANG_FORMAT) -i {} +

# Not in go.mod, like nfpm.
GOLANGCI_LINT := go tool -modfile=tests/tools/golangci-lint/go.mod golangci-lint

.PHONY: check-format
check-format: ## check the format of Go and C, and the shell scripts
	@files=$$(gofmt -l .) && [ -z "$$files" ] || { printf 'run make fmt for:\n%s\n' "$$files" >&2; exit 1; }
	find $(C_DIRS) -name '*.[ch]' -exec $(CLANG_FORMAT) --dry-run -Werror {} +
	find . -path ./.git -prune -o -type f \
		-exec awk 'FNR == 1 && /^#!.*[\/ ](ba)?sh/ { print FILENAME } { nextfile }' {} + \
		| xargs -r shellcheck

.PHONY: lint
lint: check-format ## check the Go (fetches golangci-lint), and what check-format does
	@# A proxy may lack what only the tests of a dependency import, so that go.sum differs.
	@# What is missing there for weir is an error of the build.
	@for module in . tests/bench/filters tests/browser tests/man; do \
		tidy=$$(cd $$module && go mod tidy -e -diff 2>&1) || case $$tidy in \
			*'diff current/go.mod '*) echo "$$module: $$tidy" >&2; exit 1 ;; esac; \
	done
	@# Beside others, such as those of other clones, it would fail for its lock.
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...
	@# With GOWORK, go tool takes no -modfile: it prints the program, which then gets GOWORK.
	linter=$$(go tool -modfile=tests/tools/golangci-lint/go.mod -n golangci-lint); \
		GOWORK=$(WORK) $$linter run --allow-parallel-runners $(MODULES)
	cd tests/tools/release && go vet ./...

.PHONY: check
check:
	@CGO_ENABLED=0 go build -o dist/check ./tests/check

# Each test says in its source what it needs, and so where it runs: tests/long, tests/timed and
# tests/lab.Tool mark what make test leaves to other stages of .ci/run.
LONG  := weir/tests/long
ALONE := weir/tests/timed.Alone
TOOLS := weir/tests/lab.Tool
comma := ,
# The packages with tests that make a call; those of tests/ first, which take longest.
packages = $$(dist/check marked $(1) | awk '{ print $$1 }' | sort -ru)
# Packages whose tests depend only on what Go's test cache knows: it may answer for them.
CACHED := $(subst $() ,$(comma),./filter/... $(addprefix ./control/,compressed list list/listfile plan quantity))
# Packages at once: most tests of packages that take long wait.
packages_at_once = -p $(shell echo $$(($$(nproc) + $(1))))
# A tenth of the CPU time of all daemons and tests was garbage collection. What measures
# memory sets its own.
COLLECT := GOGC=300

.PHONY: test
test: setup check ## show that weir works on this machine (as root: without it, what needs the kernel is skipped)
	@$(COLLECT) $(call gotest,-proof -binaries dist/binaries -cached $(CACHED)) -short -count=1 \
		$(call packages_at_once,6) -parallel 4 -timeout 2h ./...

.PHONY: test-long
test-long: export GOWORK := $(WORK)
test-long: export WEIR_LONG := 1
test-long: setup check ## run the tests that make test leaves out for their time, and the full sizes of others
	@$(call gotest,-binaries dist/binaries -marked $(LONG) -unmarked $(ALONE)) -count=1 \
		$(call packages_at_once,2) -parallel 4 -timeout 30m $(call packages,$(LONG))

.PHONY: test-alone
test-alone: export GOWORK := $(WORK)
test-alone: export WEIR_LONG := 1
test-alone: setup check ## run the tests that measure, one after another
	@$(call gotest,-binaries dist/binaries -marked $(ALONE)) -count=1 -p 1 -timeout 20m $(call packages,$(ALONE))

.PHONY: test-programs
test-programs: export GOWORK := $(WORK)
test-programs: setup check ## run the tests that need programs of other projects, such as a browser
	@$(call gotest,-binaries dist/binaries -marked $(TOOLS) -unmarked $(LONG)$(comma)$(ALONE)) -count=1 \
		$(call packages_at_once,2) -timeout 20m $(call packages,$(TOOLS))
	@$(call gotest,-binaries dist/binaries -unmarked $(TOOLS)$(comma)$(LONG)$(comma)$(ALONE)) -count=1 -timeout 20m $(MODULES)

.PHONY: test-times
test-times: ## run the tests, and print which take longest
	rm -f dist/times
	$(MAKE) test TIMES=dist/times
	dist/check times dist/times

# What has goroutines. Left out are the packages without, which only compute, or which
# others lock for; config, list and demo, whose few goroutines meet in a channel or a
# WaitGroup; loader, which the tests of attach and daemon use; and tests/, whose daemons are
# processes of their own.
RACED := ./cmd/... $(addprefix ./control/,announce api/... attach audit console daemon export feed \
	fleet/broker fleet/hub fleet/node fleet/rehearsal history journal lists metrics notify \
	observe/drops observe/events observe/flows observe/partners observe/worth serve stage/digest top)
# The filters that are read beside their writer, by atomic operations, as the kernel's
# programs do; the tests that do so.
RACED_FILTERS := ./filter/membership ./filter/cuckoo ./filter/quotient
READERS       := ^(TestConcurrent|TestRenewBesideReaders|TestTableReadersBesideWriter|TestWeightsReadersBesideWriter)$$

.PHONY: test-race
test-race: export CGO_ENABLED := 1
test-race: setup check ## run the tests of packages with goroutines under the race detector (needs gcc; as root)
	@$(GOTEST) -race -count=1 -timeout 20m -run '$(READERS)' $(RACED_FILTERS)
	@$(COLLECT) $(call gotest,-unmarked $(ALONE)$(comma)$(TOOLS)) -race -count=1 $(call packages_at_once,2) -parallel 4 -timeout 20m \
		./control/daemon ./control/fleet/hub $(RACED)

.PHONY: mutants
mutants: export GOWORK := $(WORK)
mutants: setup ## put small faults into the code, one at a time: tests must fail (FAULTS: areas, names; as root; needs clang)
	go run ./tests/mutants $(FAULTS)

.PHONY: test-exhaustive
test-exhaustive: export WEIR_EXHAUSTIVE := 1
test-exhaustive: check ## ask filters of every address, hashes of every pair in reach; all rounds of random faults (hours)
	$(GOTEST) -timeout 4h ./filter/hash ./filter/quotient
	$(call gotest,-marked weir/tests/long.Rounds) -count=1 -timeout 4h $(call packages,weir/tests/long.Rounds)

.PHONY: test-kernels
test-kernels: ## run the kernel's tests on Debian's kernels, 5.10 and later, and write docs/kernels.md
	tests/kernels/run
	sed -i '/^## Results/q' docs/kernels.md
	{ echo; cat dist/kernels/results; } >>docs/kernels.md

.PHONY: box
box: ## make the box of the virtual machine from Debian's packages, in ./dist/box (as root)
	vagrant/box

.PHONY: vagrant
vagrant: ## bring up a virtual machine, and run demo and tests in it (as root; see vagrant/README.md)
	@[ -n "$${WEIR_BOX:-}" ] || [ -e dist/box/weir.box ] || $(MAKE) box
	$(MAKE) build man OUT=dist/vagrant
	go test -c -o dist/vagrant/tests/ $$(awk '/^[^#]/ { print $$1 }' tests/kernels/suites)
	rm -rf dist/vagrant/modules
	@# What the machine's Go is to find without a network.
	modules=$$(go env GOMODCACHE)/cache/download proxy=$$(go env GOPROXY) && \
		export GOMODCACHE=$$(mktemp -d) && \
		export GOFLAGS=-modcacherw GOPROXY=file://$$modules,$$proxy GOSUMDB=off && \
		for module in . tests/bench/filters tests/browser tests/man; do (cd $$module && go mod download); done && \
		mv $$GOMODCACHE/cache/download dist/vagrant/modules && rm -rf $$GOMODCACHE
	VAGRANT_CWD=vagrant vagrant --no-tty up --provision

.PHONY: demo
demo: build setup ## filter real traffic between two namespaces (as root)
	./weir demo

BENCH := go run $(BUILDFLAGS) ./tests/bench

.PHONY: bench
bench: setup ## measure this machine against the design's bars (as root)
	$(BENCH)

# What the peers are measured with. Ten million entries take 4 GB of memory; a hundred
# million, which are only loaded, 8 GB.
ENTRIES ?= 10000,100000,1000000,10000000,100000000
FEEDS   ?= $(wildcard $(addprefix $(or $(WEIR_DATA),../shared/data)/feeds/,\
	firehol_level1-2020.netset.gz union-2026.txt.gz bitwire-inbound-networks.txt.gz))

.PHONY: bench-peers
bench-peers: report := docs/benchmarks/report.json
bench-peers: setup ## measure weir beside nftables, ipset and xdp-filter, which it installs, for docs/benchmarks.md (as root, half an hour)
	apt-get install -y --no-install-recommends nftables ipset iptables xdp-tools
	$(BENCH) --peers --entries $(ENTRIES) $(addprefix --feed ,$(FEEDS)) --json >$(report).new || { rm $(report).new; exit 1; }
	mv $(report).new $(report)
	go run ./tests/peers

.PHONY: bench-filters
bench-filters: ## compare filters and sketches with others, for docs/comparison.md, with times (needs WEIR_DATA)
	GOWORK=$(WORK) go run $(BUILDFLAGS) ./tests/bench/filters -times

.PHONY: pictures
pictures: setup ## draw the README's pictures anew (as root; needs tmux and chromium)
	GOWORK=$(WORK) go run ./tests/browser/picture docs/images/top.svg docs/images/console.png

.PHONY: papers
papers: ## compute the figures and tables of docs/papers anew
	go run ./tests/papers

.PHONY: setup
setup:
	@[ "$$(id -u)" -eq 0 ] || echo 'not root: what needs the kernel will not run'
	@tests/setup

.PHONY: fuzz
# By default Go spends up to a minute on making an input shorter that reaches new code: all of the
# time, of targets whose inputs hardly get shorter.
fuzz: ## run every fuzz target for FUZZTIME (2m), one after another
	@go test -list '^Fuzz' ./... \
		| awk '/^Fuzz/ { names[n++] = $$1 } $$1 == "ok" { while (n > 0) print $$2, names[--n] }' \
		| while read -r package name; do \
			echo "$$package $$name"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$package" </dev/null; \
		done

.PHONY: clean
clean: ## remove what the other targets built
	rm -rf weir weir-hub dist
	find . -name '*.test' -type f -delete -o -name '*.prof' -type f -delete

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
MODULES := ./tests/bench/filters/... ./tests/browser/... ./tests/man/... ./tests/stranger/...
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

include cmd/packaging.mk tests/tests.mk tests/bench/bench.mk vagrant/vagrant.mk

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
	@for module in . tests/bench/filters tests/browser tests/man tests/stranger; do \
		tidy=$$(cd $$module && go mod tidy -e -diff 2>&1) || case $$tidy in \
			*'diff current/go.mod '*) echo "$$module: $$tidy" >&2; exit 1 ;; esac; \
	done
	@# Beside others, such as those of other clones, it would fail for its lock.
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...
	@# With GOWORK, go tool takes no -modfile: it prints the program, which then gets GOWORK.
	linter=$$(go tool -modfile=tests/tools/golangci-lint/go.mod -n golangci-lint); \
		GOWORK=$(WORK) $$linter run --allow-parallel-runners $(MODULES)
	cd tests/tools/release && go vet ./...

.PHONY: demo
demo: build setup ## filter real traffic between two namespaces (as root)
	./weir demo

.PHONY: setup
setup:
	@[ "$$(id -u)" -eq 0 ] || echo 'not root: what needs the kernel will not run'
	@tests/setup

.PHONY: clean
clean: ## remove what the other targets built
	rm -rf weir weir-hub dist
	find . -name '*.test' -type f -delete -o -name '*.prof' -type f -delete

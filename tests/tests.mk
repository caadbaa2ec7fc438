# Tests, faults, fuzzing. The Makefile includes it.

.PHONY: check
check:
	@CGO_ENABLED=0 go build -o dist/check ./tests/check

# Each test says in its source what it needs, and so where it runs: tests/long, tests/timed and
# tests/lab.Tool mark what make test leaves to other stages of .ci/run.
LONG  := weir/tests/long
ALONE := weir/tests/timed.Alone
TOOLS := weir/tests/lab.Tool
comma := ,
# The packages with tests that make a call; those of tests/ first, which take longer.
packages = $$(dist/check marked $(1) | awk '{ print $$1 }' | sort -ru)
# Those that take longest, before the others: none of them is to be left alone at the end.
LONGEST := ./tests/packaging ./tests/daemon ./tests/contract ./tests/faults ./control/daemon ./control/fleet/hub
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
	@$(COLLECT) $(call gotest,-binaries dist/binaries -marked $(LONG) -unmarked $(ALONE)) -count=1 \
		$(call packages_at_once,4) -parallel 4 -timeout 80m $(LONGEST) $(call packages,$(LONG))

.PHONY: test-alone
test-alone: export GOWORK := $(WORK)
test-alone: export WEIR_LONG := 1
test-alone: setup check ## run the tests that measure, one after another
	@$(call gotest,-binaries dist/binaries -marked $(ALONE)) -count=1 -p 1 -timeout 40m $(call packages,$(ALONE))

.PHONY: test-programs
test-programs: export GOWORK := $(WORK)
test-programs: setup check ## run the tests that need programs of other projects, such as a browser
	@$(call gotest,-binaries dist/binaries -marked $(TOOLS) -unmarked $(LONG)$(comma)$(ALONE)) -count=1 \
		$(call packages_at_once,2) -timeout 40m $(call packages,$(TOOLS))
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
RACED := ./cmd/... $(addprefix ./control/,api/... attach console daemon export feed fleet/broker fleet/hub \
	fleet/node history lists notify observe observe/events receive serve stage/digest top)
# What has no goroutines, and is read beside its writer: the filters by atomic operations, as the
# kernel's programs do; the tests that do so.
RACED_READERS := ./filter/membership ./filter/cuckoo ./filter/quotient ./control/journal ./control/metrics
READERS       := ^(TestConcurrent|TestReaders|TestRenewBesideReaders|TestTableReadersBesideWriter|TestWeightsReadersBesideWriter)$$

.PHONY: test-race
test-race: export CGO_ENABLED := 1
test-race: setup check ## run the tests of packages with goroutines under the race detector (needs gcc; as root)
	@$(GOTEST) -race -count=1 -timeout 20m -run '$(READERS)' $(RACED_READERS)
	@$(COLLECT) $(call gotest,-unmarked $(ALONE)$(comma)$(TOOLS)) -race -count=1 $(call packages_at_once,2) -parallel 6 -timeout 40m \
		./control/daemon ./control/fleet/hub $(RACED)

.PHONY: mutants
mutants: export GOWORK := $(WORK)
mutants: setup ## put small faults into the code, one at a time: tests must fail (FAULTS: areas, names; as root; needs clang)
	go run ./tests/mutants $(FAULTS)

.PHONY: test-exhaustive
test-exhaustive: export WEIR_LONG := 1
test-exhaustive: export WEIR_EXHAUSTIVE := 1
test-exhaustive: check ## ask filters of every address, hashes of every pair in reach; all rounds of random faults (hours)
	$(GOTEST) -timeout 4h ./filter/hash ./filter/quotient
	$(call gotest,-marked weir/tests/long.Rounds) -count=1 -timeout 4h $(call packages,weir/tests/long.Rounds)

.PHONY: test-kernels
test-kernels: ## run the kernel's tests on Debian's kernels, 5.10 and later, and write docs/kernels.md
	tests/kernels/run
	sed -i '/^## Results/q' docs/kernels.md
	{ echo; cat dist/kernels/results; } >>docs/kernels.md

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

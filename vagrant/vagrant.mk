# The virtual machine. The Makefile includes it.

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

# What is installed, packages and releases. The Makefile includes it.

# systemd looks for its files below these prefixes and in /etc, and for programs below
# these prefixes only.
ifneq ($(filter /usr /usr/local,$(PREFIX)),)
SYSTEMD := $(PREFIX)/lib
else
SYSTEMD := /etc
PROGRAMS := $(PREFIX)/bin/
endif

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

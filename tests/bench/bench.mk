# Measurements, and the pictures and figures of the documentation. The Makefile includes it.

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

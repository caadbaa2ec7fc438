#!/bin/bash
# Builds weir in the directory that is given and shows it at work: the demo makes
# two network namespaces with a veth pair between them. For a Debian machine with
# Go in /usr/local/go, as root; may run again and again.
set -euo pipefail
cd "$1"

# sudo searches /usr/local/bin, but not Go's directory.
command -v go >/dev/null || ln -s /usr/local/go/bin/go /usr/local/bin/go

# The certificates are for fetching Go modules.
missing=()
for package in make ca-certificates; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
		missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends "${missing[@]}"
fi

uname -srm
go version
make demo

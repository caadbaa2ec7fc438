#!/bin/bash
# Unpacks Debian's CrowdSec into a directory, for the test of its local API: its package
# cannot be configured without the Internet. Does nothing if it is there.
set -euo pipefail
to=$1

[ ! -x "$to/usr/bin/cscli" ] || exit 0
mkdir -p "$to"
cd "$to"
fetch() { apt-get -qq -o APT::Sandbox::User=root download crowdsec; }
fetch || { apt-get -qq update && fetch; }
dpkg-deb -x crowdsec_*.deb .
rm crowdsec_*.deb

#!/bin/bash
# In the virtual machine, as root: installs weir, makes the playground, runs the
# demo and the tests, and prints the results. May be repeated.
#
# usage: provision.sh dataplane|all|none     which tests
#
# /weir is the repository, /built contains the binaries of `make vagrant`.
set -euo pipefail
cd /weir

packages=(make ethtool tcpdump iproute2 netsniff-ng git man-db) # weir's own box has them
missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
		missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends "${missing[@]}"
fi

uname -srm
make --no-print-directory install OUT=/built PREFIX=/usr
weir version

results=()
failed=0
run() { # name, command…
	local name=$1 began=$SECONDS result=ok log=/var/log/weir-$1.log status=0
	shift
	echo "== $name"
	"$@" >"$log" 2>&1 || status=$?
	if [ $status -ne 0 ]; then
		tail -n 40 "$log"
		result="FAILED with $status, see $log"
		failed=1
	fi
	results+=("$(printf '%-10s %5d s  %s' "$name" $((SECONDS - began)) "$result")")
}

suite() { # package directory, arguments of its test binary: in its directory, as go test does
	local binary=/built/tests/${1##*/}.test
	(cd "$1" && shift && CI=true "$binary" -test.v -test.timeout 30m "$@")
}

run demo weir demo
grep -v '^ ' /var/log/weir-demo.log | tail -n 12
tests/setup
case $1 in
dataplane)
	while read -r -u 3 package arguments; do
		# Unquoted: a list of arguments.
		# shellcheck disable=SC2086
		run "${package##*/}" suite "$package" $arguments
	done 3< <(grep '^[^#]' tests/kernels/suites)
	;;
all)
	export PATH=$PATH:/usr/local/go/bin GOPROXY=file:///built/modules GOSUMDB=off
	run tests make test
	;;
none) ;;
*)
	echo "provision.sh: tests are dataplane, all or none, not $1" >&2
	exit 2
	;;
esac

run playground vagrant/playground

echo
echo "weir on Linux $(uname -r):"
printf '  %s\n' "${results[@]}"
if [ $failed -ne 0 ]; then
	echo "not all went well"
	exit 1
fi
echo "all went well. Now: vagrant ssh -c 'sudo weir top'"

#!/bin/bash
# Debian's mirror, and QEMU from it. To be sourced; wants a function die.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror and the release of this machine, as "address release". The form
# wants the package lists to be there.
origin() {
	# apt expands these.
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$3 == "main" && $2 ~ /^(bullseye|bookworm|trixie|forky|sid)$/ { print $1, $2; exit }'
}

find_origin() {
	# apt expands these.
	# shellcheck disable=SC2016
	[ -z "${mirror:-}" ] || return 0
	local found
	found=$(origin)
	if [ -z "$found" ] && [ "$(id -u)" -eq 0 ]; then
		apt-get -qq update
		found=$(origin)
	fi
	[ -n "$found" ] || die "apt knows no Debian mirror"
	read -r mirror release <<<"$found"
}

# Writes an apt configuration with a state of its own, beside which the
# machine's own apt stays as it is, and reads the package lists.
private_apt() { # directory, in whose sources/ the sources are; further architectures
	mkdir -p "$1"/{lists,cache/archives}/partial
	cat >"$1/apt.conf" <<-EOF
		Dir::Etc::sourcelist "/dev/null";
		Dir::Etc::sourceparts "$1/sources";
		Dir::State::lists "$1/lists";
		Dir::Cache "$1/cache";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Acquire::Retries "3";
	EOF
	[ $# -eq 1 ] || printf 'APT::Architectures { "amd64"; "%s"; };\n' "$2" >>"$1/apt.conf"
	# A release may have left the mirror; what is missing for it shows later.
	APT_CONFIG=$1/apt.conf apt-get -qq update || echo "apt could not read everything" >&2
}

source_of() { # release, architectures
	echo "deb [arch=${2:-amd64} signed-by=$keyring] $mirror $1 main"
}

# QEMU 7.2 corrupts flags when it emulates recent kernels; 10.0 does not.
qemu_works() { # machine
	local major
	command -v "qemu-system-$1" >/dev/null || return 1
	major=$("qemu-system-$1" --version | sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p')
	[ "${major:-0}" -ge 10 ]
}

get_qemu() { # directory for what apt reads; machine: x86_64, or aarch64
	local machine=${2:-x86_64} package=qemu-system-x86
	! qemu_works "$machine" || return 0
	[ "$machine" != aarch64 ] || package=qemu-system-arm
	[ "$(id -u)" -eq 0 ] || die "needs qemu-system-$machine of QEMU 10 or later"
	find_origin
	local state=$1/apt-qemu from=$release
	rm -rf "$state"
	mkdir -p "$state/sources"
	# This machine's own sources and the backports to its own release, nothing
	# else: with a later release among them, apt would replace the C library.
	cp /etc/apt/sources.list /etc/apt/sources.list.d/* "$state/sources" 2>/dev/null || true
	if [ "$release" = bookworm ]; then
		from=bookworm-backports
		source_of $from >"$state/sources/backports.list"
	fi
	private_apt "$state"
	APT_CONFIG=$state/apt.conf DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
		--no-install-recommends --no-remove -t "$from" $package >"$state/log" 2>&1 ||
		die "could not install QEMU: $(tail -3 "$state/log")"
	qemu_works "$machine" || die "$release has no QEMU 10 or later"
}

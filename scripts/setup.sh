#!/usr/bin/env bash
# Installs what the demo and the tests of hipofs need, and says what it does:
#
#   scripts/setup.sh demo    fuse3, and a Python environment in ./.venv
#   scripts/setup.sh test    the same, and a C compiler (for go test -race), mandoc, rpm and rsync
#   scripts/setup.sh clients the same, and what readers in other languages need, in build/clients
#   scripts/setup.sh clients all
#                            and what is large: ROOT
#
# A client that cannot be had is said, and its test is skipped; nothing else fails for it.
# Go and Python 3.11 must be there. System packages are installed with apt-get or
# dnf, by root or through a sudo that asks for no password. What is there already
# is left alone, so running it again costs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

case "${1-}" in
demo) tools="fusermount3" ;;
test | clients) tools="fusermount3 cc cmp find mandoc rpm rsync setpriv tar" ;;
*) stop "usage: scripts/setup.sh demo|test|clients [all]" ;;
esac

# package NAME: the package that brings the command NAME, with apt-get and with dnf.
package() {
	case "$1:$manager" in
	fusermount3:*) echo fuse3 ;;
	cc:apt-get) echo gcc libc6-dev ;;
	cc:dnf) echo gcc ;;
	cmp:*) echo diffutils ;;
	find:*) echo findutils ;;
	setpriv:*) echo util-linux ;;
	*) echo "$1" ;;
	esac
}

# as_root COMMAND...: run it as root, or fail where this user cannot become root unasked.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	else
		sudo -n true 2>/dev/null && sudo -n "$@"
	fi
}

# install PACKAGE...: with the system's package manager; false where that is not possible.
install() {
	case "$manager" in
	apt-get)
		as_root true || return 1
		say "installing $* with apt-get"
		as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
			as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "$@" >/dev/null
		;;
	dnf)
		as_root true || return 1
		say "installing $* with dnf"
		as_root dnf -q -y install "$@"
		;;
	*) return 1 ;;
	esac
}

manager=none
for m in apt-get dnf; do
	if command -v "$m" >/dev/null; then
		manager=$m
		break
	fi
done

command -v go >/dev/null || stop "Go is missing; install Go $(sed -n 's/^go //p' go.mod) or newer and run this again"
command -v python3 >/dev/null || stop "Python is missing; install Python 3.11 or newer and run this again"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
	stop "$(python3 --version) is too old; install Python 3.11 or newer, first in PATH, and run this again"

packages=""
for tool in $tools; do
	command -v "$tool" >/dev/null || packages="$packages $(package "$tool")"
done
if [ -n "$packages" ]; then
	# shellcheck disable=SC2086 # a list of words
	install $packages || stop "cannot install$packages here; ask an administrator to install them and run this again"
fi

[ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
[ -e /dev/fuse ] || stop "there is no /dev/fuse: this machine has no FUSE; a container needs --device /dev/fuse --cap-add SYS_ADMIN"
# shellcheck disable=SC2015 # both must hold
[ -r /dev/fuse ] && [ -w /dev/fuse ] || stop "this user may not open /dev/fuse; ask an administrator for: chmod 0666 /dev/fuse"

# pip ARGUMENTS...: the pip of .venv, or that of the system where .venv has none.
pip() {
	if .venv/bin/python -m pip --version >/dev/null 2>&1; then
		.venv/bin/python -m pip --quiet --disable-pip-version-check "$@"
	else
		python3 -m pip --quiet --disable-pip-version-check --python .venv/bin/python "$@"
	fi
}

# The stamp is written last, so an environment that was interrupted is made again.
stamp=$(python3 --version; cat integration/requirements.txt)
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
	say "making the Python environment .venv from integration/requirements.txt"
	rm -rf .venv
	if python3 -c 'import ensurepip, venv' 2>/dev/null || { install python3-venv && python3 -c 'import ensurepip, venv' 2>/dev/null; }; then
		python3 -m venv .venv
	elif ! python3 -m pip --version >/dev/null 2>&1 || ! python3 -m venv --without-pip .venv 2>/dev/null; then
		stop "this Python cannot make a virtual environment; install the package python3-venv and run this again"
	fi
	pip install -r integration/requirements.txt ||
		stop "pip could not install integration/requirements.txt; the lines above say why"
	printf '%s\n' "$stamp" >.venv/stamp
fi

# client LANGUAGE STAMP INPUT COMMAND...: get what a client needs, once for each content of INPUT.
client() {
	local language=$1 stamp=$2 input log=build/clients/$1.log
	input=$(cksum <"$3")
	shift 3
	[ "$(cat "$stamp" 2>/dev/null)" = "$input" ] && return
	say "getting what the client in $language needs"
	if "$@" </dev/null >"$log" 2>&1; then
		printf '%s\n' "$input" >"$stamp"
	else
		say "no client in $language: $(grep -v '^ *$' "$log" | tail -n 1 || echo "$1 failed")"
	fi
}

rust() { cargo build --quiet --locked --manifest-path integration/clients/rust/Cargo.toml --target-dir build/clients/rust; }
java() { mvn -q -B -f integration/clients/java/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/build/clients/java"; }
javascript() {
	mkdir -p build/clients/javascript
	cp integration/clients/javascript/package*.json build/clients/javascript
	npm ci --prefix build/clients/javascript --no-audit --no-fund
}
golang() { go -C integration/clients/go mod download; }
s3() {
	mkdir -p build/clients/s3
	cp integration/s3/package*.json build/clients/s3
	npm ci --prefix build/clients/s3 --no-audit --no-fund
}
python() { pip install --no-deps -r integration/clients/python/requirements.txt; }
cxx() { command -v c++ >/dev/null || install "$([ "$manager" = dnf ] && echo gcc-c++ || echo g++)"; }
xtensor() { [ -e /usr/include/xtensor/xnpy.hpp ] || install libxtensor-dev; }
r() { command -v Rscript >/dev/null || install r-base-core; }
root() { pip install --no-deps -r integration/clients/root/requirements.txt; }

if [ "$1" = clients ]; then
	mkdir -p build/clients
	here=integration/clients
	client rust build/clients/rust.stamp $here/rust/Cargo.lock rust & # compiles while the others fetch
	client java build/clients/java.stamp $here/java/pom.xml java
	client javascript build/clients/javascript.stamp $here/javascript/package-lock.json javascript
	client S3 build/clients/s3.stamp integration/s3/package-lock.json s3
	client go build/clients/go.stamp $here/go/go.sum golang
	client python .venv/clients.stamp $here/python/requirements.txt python
	client C++ build/clients/C++.stamp /dev/null cxx
	client xtensor build/clients/xtensor.stamp /dev/null xtensor
	client R build/clients/R.stamp /dev/null r
	if [ "${2-}" = all ]; then
		client ROOT .venv/root.stamp $here/root/requirements.txt root
	fi
	wait
fi
say "ready for make $1"

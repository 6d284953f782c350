#!/usr/bin/env bash
# Installs what the demo and the tests of hipofs need, and says what it does:
#
#   scripts/setup.sh demo    fuse3, and a Python environment in ./.venv
#   scripts/setup.sh test    the same, and a C compiler (for go test -race), mandoc and rsync
#
# Go and Python 3.11 must be there. System packages are installed with apt-get or
# dnf, by root or through a sudo that asks for no password. What is there already
# is left alone, so running it again costs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

case "${1-}" in
demo) tools="fusermount3" ;;
test) tools="fusermount3 cc cmp find mandoc rsync setpriv tar" ;;
*) stop "usage: scripts/setup.sh demo|test" ;;
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

# The stamp is written last, so an environment that was interrupted is made again.
stamp=$(python3 --version; cat integration/requirements.txt)
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
	say "making the Python environment .venv from integration/requirements.txt"
	rm -rf .venv
	if python3 -c 'import ensurepip, venv' 2>/dev/null || { install python3-venv && python3 -c 'import ensurepip, venv' 2>/dev/null; }; then
		python3 -m venv .venv
		pip=".venv/bin/python -m pip"
	elif python3 -m pip --version >/dev/null 2>&1 && python3 -m venv --without-pip .venv 2>/dev/null; then
		pip="python3 -m pip --python .venv/bin/python"
	else
		stop "this Python cannot make a virtual environment; install the package python3-venv and run this again"
	fi
	$pip install --quiet --disable-pip-version-check -r integration/requirements.txt ||
		stop "pip could not install integration/requirements.txt; the lines above say why"
	printf '%s\n' "$stamp" >.venv/stamp
fi
say "ready for make $1"

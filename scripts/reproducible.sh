#!/usr/bin/env bash
# Builds the packages from two clones of the commit that is checked out, in folders of different names and with different
# clocks, umasks and locales, and compares their bytes. Given platforms (OS/ARCH...), only those.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/hipofs-twice.XXXXXX")
trap 'rm -rf "$work"' EXIT

for n in 1 22; do
	git clone -q . "$work/clone$n"
	mkdir -p build/tools "$work/clone$n/build"
	cp -r build/tools "$work/clone$n/build" # programs of a version need not be built twice
	ln -s "$PWD/.venv" "$work/clone$n"
	(
		cd "$work/clone$n"
		if [ "$n" = 22 ]; then
			umask 077
			export TZ=Asia/Tokyo LC_ALL=C.UTF-8
		fi
		make --no-print-directory build >/dev/null
		scripts/package.sh "$@"
	)
done
diff "$work"/clone{1,22}/build/packages/SHA256SUMS
cat "$work/clone1/build/packages/SHA256SUMS"
echo "the same bytes from two clones of $(git rev-parse --short HEAD)"

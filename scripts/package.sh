#!/usr/bin/env bash
# Builds the packages of hipofs for all platforms, or for some:
#
#   scripts/package.sh [--try BINARY] [OS/ARCH...]
#
# into build/packages: deb and rpm for Linux, a tarball, an SBOM and a Python wheel for each platform, the sources, and
# SHA256SUMS. The same commit and the same Go give the same bytes, wherever it is cloned. Needs build/hipofs and, for wheels,
# .venv. --try packages a binary that is there, as deb and rpm alone.
set -euo pipefail
cd "$(dirname "$0")/.."

trial=
if [ "${1-}" = --try ]; then
	trial=$2
	shift 2
fi
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

VERSION=$(cat cmd/hipofs/VERSION)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH-$(git log -1 --format=%ct)}
export VERSION SOURCE_DATE_EPOCH CGO_ENABLED=0 LC_ALL=C TZ=UTC
umask 022

say() { printf 'package: %s\n' "$*"; }

# tool MODULE@VERSION: the path of a program of that version, installed if it is not there. -trimpath: an SBOM has its checksum.
tool() {
	local folder=$PWD/build/tools/${1##*@}
	local program=${1%@*}
	program=$folder/${program##*/}
	[ -x "$program" ] || GOBIN=$folder go install -trimpath -buildvcs=false "$1" >&2
	printf '%s\n' "$program"
}
nfpm=$(tool github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2)
[ -n "$trial" ] || sbom=$(tool github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0)

out=build/packages tree=build/tree
rm -rf "$out"
mkdir -p "$out"

# release OS ARCH: build what is packaged. Nothing of this machine gets in: no path, no state of git. Without its table of
# symbols it is a third smaller.
release() {
	program=build/release/$1-$2/hipofs
	GOOS=$1 GOARCH=$2 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid=" -o "$program" ./cmd/hipofs
}

# tarball FOLDER NAME: FOLDER as NAME.tar.gz, whose bytes follow from its content alone.
tarball() {
	tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=ustar \
		--transform "s|^\.|$2|S" -cf - . | gzip -n9 >"$out/$2.tar.gz"
}

# bom NAME: what is in the program, as CycloneDX; the time is the commit's.
bom() {
	"$sbom" bin -json -std -noserial -version "v$VERSION" "$program" |
		sed "s|^    \"timestamp\": \".*\"|    \"timestamp\": \"$(date -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)\"|" >"$out/$1.cdx.json"
}

for platform in "$@"; do
	os=${platform%/*} arch=${platform#*/}
	name=hipofs-$VERSION-$os-$arch
	say "$platform"
	program=$trial
	[ -n "$trial" ] || release "$os" "$arch"
	scripts/tree.sh "$program" "$tree"
	if [ "$os" = linux ]; then
		for kind in deb rpm; do
			ARCH=$arch "$nfpm" package -f packaging/nfpm.yaml -p "$kind" -t "$out/" >/dev/null
		done
	fi
	[ -z "$trial" ] || continue
	[ "$os" = linux ] || rm -r "$tree"/usr/{sbin,lib,share/man/man8,share/doc/hipofs/slurm} # of mounts
	install -D -m 644 "$tree/_hipofs" "$tree/usr/share/zsh/site-functions/_hipofs"
	tarball "$tree/usr" "$name"
	bom "$name"
done

if [ -z "$trial" ]; then
	rm -rf build/wheels
	scripts/wheels.sh "$@"
	cp build/wheels/*.whl "$out"
	git archive --prefix="hipofs-$VERSION/" HEAD | gzip -n9 >"$out/hipofs-$VERSION.tar.gz"
fi
(cd "$out" && sha256sum -- * >SHA256SUMS)
say "$out has $(ls -xw 1000 "$out")"

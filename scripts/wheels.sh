#!/usr/bin/env bash
# Builds the Python wheels of hipofs into build/wheels, for every platform or for those named:
#
#   scripts/wheels.sh [OS/ARCH...]
#
# The same commit gives the same bytes, wherever it is cloned.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH-$(git log -1 --format=%ct)}
umask 022
for platform in "$@"; do
	GOOS=${platform%/*} GOARCH=${platform#*/} .venv/bin/python -m pip wheel --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation --wheel-dir build/wheels ./python
done

#!/bin/bash
# What conda build runs in a copy of the sources, with $PREFIX to install into.
set -euo pipefail
export CGO_ENABLED=0
go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$PREFIX/bin/hipofs" ./cmd/hipofs
"$PREFIX/bin/hipofs" man "$PREFIX/share/man/man1"
for shell in bash:bash-completion/completions/hipofs fish:fish/vendor_completions.d/hipofs.fish zsh:zsh/site-functions/_hipofs; do
	file=$PREFIX/share/${shell#*:}
	mkdir -p "${file%/*}"
	"$PREFIX/bin/hipofs" completion "${shell%%:*}" >"$file"
done
scripts/licenses.sh >THIRD-PARTY-LICENSES

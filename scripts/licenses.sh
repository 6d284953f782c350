#!/usr/bin/env bash
# Prints the licences of what is in the command beside hipofs itself: of each Go
# module, and of Go. They go into every package.
set -euo pipefail
cd "$(dirname "$0")/.."

# licence NAME FOLDER: every licence file of a module, under its name.
licence() {
	local file found=
	for file in "$2"/LICENSE* "$2"/LICENCE* "$2"/COPYING* "$2"/UNLICENSE* "$2"/NOTICE* "$2"/PATENTS*; do
		[ -f "$file" ] || continue
		found=yes
		printf '\n==== %s: %s\n\n' "$1" "${file##*/}"
		cat "$file"
	done
	[ -n "$found" ] || { printf 'licenses: %s has no licence\n' "$1" >&2; return 1; }
}

echo "hipofs contains the following, under the licences below."
licence "Go $(sed -n 's/^go //p' go.mod)" "$(go env GOROOT)"
# For every platform that is packaged: some modules are in one of them only.
modules=$(for os in linux darwin; do
	GOOS=$os CGO_ENABLED=0 go list -e -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/hipofs
done | sort -u)
while read -r path version folder; do
	licence "$path $version" "$folder"
done <<<"$modules"

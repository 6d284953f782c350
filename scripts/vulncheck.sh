#!/usr/bin/env bash
# Looks in the Go vulnerability database for what is in the command.
#
#   scripts/vulncheck.sh [OPTION OF GOVULNCHECK...]
#
# A known vulnerability in a function that the command has fails it. Where the
# database does not answer, nothing has been checked, which is said; that fails
# only with VULNCHECK=required.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

export CGO_ENABLED=0
go build -o build/hipofs ./cmd/hipofs || exit 1
# The binary, not the sources: its table of symbols says in a second what a graph of
# calls takes minutes to find. A database that does not answer holds nobody up.
said=$(timeout 120 go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -mode binary "$@" build/hipofs 2>&1)
status=$?
if [ "$status" -eq 0 ]; then
	echo "govulncheck: no known vulnerability"
elif [ "$status" -eq 124 ] || grep -q 'govulncheck: fetching vulnerabilities:' <<<"$said"; then
	printf '%s\n' "$said" >&2
	echo "govulncheck: NOT CHECKED: the vulnerability database does not answer; run this where https://vuln.go.dev can be reached" >&2
	[ "${VULNCHECK-}" != required ]
else
	printf '%s\n' "$said" >&2
	exit 1
fi

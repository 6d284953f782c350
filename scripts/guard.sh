#!/usr/bin/env bash
# Runs COMMAND... with a temporary folder of its own, and fails if a mount is left in it.
#
#   scripts/guard.sh COMMAND...
#
# What is left is named and detached, so that the next run starts clean; other mounts are not touched.
set -uo pipefail

TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/hipofs-run.XXXXXX") || exit 1
export TMPDIR
chmod 755 "$TMPDIR" # tests that act as another user work in it too

mounts() { awk -v dir="$TMPDIR/" '$3 ~ /^fuse\.hipofs/ && index($2, dir) == 1 {print $2}' /proc/mounts; }

finish() {
	status=$?
	trap - EXIT
	left=$(mounts)
	if [ -n "$left" ]; then
		printf 'guard: mounts left behind:\n%s\n' "$left" >&2
		while IFS= read -r path; do
			path=$(printf '%b' "$path") # the kernel writes a space as \040
			fusermount3 -u -z "$path" 2>/dev/null || umount -l "$path"
		done <<<"$left"
		[ "$status" -ne 0 ] || status=1
	fi
	[ -n "$(mounts)" ] || rm -rf "$TMPDIR" 2>/dev/null
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$@"

#!/usr/bin/env bash
# Runs COMMAND..., and fails if it leaves a hipofs mount behind that was not there before.
#
#   scripts/guard.sh COMMAND...
#
# A mount that is left behind is named and detached, so that the next run starts clean.
set -uo pipefail

mounts() { awk '$3 ~ /^fuse\.hipofs/ {print $2}' /proc/mounts | sort; }

before=$(mounts)
"$@"
status=$?
left=$(comm -13 <(printf '%s\n' "$before") <(mounts))
if [ -n "$left" ]; then
	printf 'guard: mounts left behind:\n%s\n' "$left" >&2
	while IFS= read -r path; do
		path=$(printf '%b' "$path") # /proc/mounts writes a space as \040
		fusermount3 -u -z "$path" 2>/dev/null || umount -l "$path"
	done <<<"$left"
	status=1
fi
exit "$status"

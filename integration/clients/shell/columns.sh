#!/usr/bin/env bash
# Every file of a bank with od, dd, tail, split, cmp and sha256sum. A shell has no sums of floats: it says "-".
set -euo pipefail
mount=$1 out=$2
shift 2
for bank; do
	mkdir -p "$out/$bank"
	for file in "$mount/$bank"/*.npy; do
		name=$(basename "$file" .npy)
		length=$(od -A n -t u2 -j 8 -N 2 "$file")
		header=$(dd if="$file" bs=1 skip=10 count="$length" status=none)
		[[ $header =~ "'descr': '"([^\']*)"'" ]]
		dtype=${BASH_REMATCH[1]}
		[[ $header =~ "'shape': ("([0-9]+),\ ?([0-9]*)")" ]]
		shape=${BASH_REMATCH[1]}${BASH_REMATCH[2]:+x${BASH_REMATCH[2]}}
		tail -c "+$((length + 11))" "$file" >"$out/$bank/$name"
		split -b 1000 "$file" "$out/$bank/part."
		cat "$out/$bank"/part.* | cmp - "$file"
		[ "$(cat "$out/$bank"/part.* | sha256sum)" = "$(sha256sum <"$file")" ]
		rm "$out/$bank"/part.*
		echo "$bank/$name.npy $dtype $shape -"
	done
done

#!/usr/bin/env bash
# Lays out what an installed hipofs consists of.
#
#   scripts/tree.sh BINARY FOLDER [PREFIX]
#
# BINARY may be of any platform; build/hipofs, which must run here, writes the man pages and completions. PREFIX is /usr
# unless another is given. zsh looks for completions in different places, so that one is in FOLDER itself.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '4p' "$0" >&2; exit 2; }
binary=$(realpath "$1") folder=$(realpath -m "$2") prefix=${3-/usr}
cd "$(dirname "$0")/.."
root=$folder$prefix

rm -rf "$folder"
mkdir -p "$root"/{bin,sbin,share/man/man8,share/doc/hipofs/slurm,share/bash-completion/completions,share/fish/vendor_completions.d}
install -m 755 "$binary" "$root/bin/hipofs"
ln -s ../bin/hipofs "$root/sbin/mount.fuse.hipofs"

build/hipofs man "$root/share/man/man1"
install -m 644 packaging/mount.fuse.hipofs.8 "$root/share/man/man8"
gzip -n9 "$root"/share/man/man?/*
build/hipofs completion bash >"$root/share/bash-completion/completions/hipofs"
build/hipofs completion fish >"$root/share/fish/vendor_completions.d/hipofs.fish"
build/hipofs completion zsh >"$folder/_hipofs"

for kind in system user; do
	mkdir -p "$root/lib/systemd/$kind"
	sed "s|/usr/bin/hipofs|$prefix/bin/hipofs|" "packaging/systemd/$kind/hipofs@.service" >"$root/lib/systemd/$kind/hipofs@.service"
done

install -m 644 README.md CHANGELOG.md "$root/share/doc/hipofs"
install -m 755 packaging/slurm/*.sh "$root/share/doc/hipofs/slurm"
{ cat LICENSE; scripts/licenses.sh; } >"$root/share/doc/hipofs/copyright"
chmod -R u=rwX,go=rX "$folder" # whatever the umask

#!/usr/bin/env bash
# make demo: mount a real HIPO file, show the folder, read a column with NumPy, unmount.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d "${TMPDIR:-/tmp}/hipofs-demo.XXXXXX")
mnt=$folder/mnt
mkdir "$mnt"
export XDG_CACHE_HOME=$folder/cache # leaves the user's own alone
mounted() { awk -v m="$mnt" '$2 == m {found = 1} END {exit !found}' /proc/mounts; }
finish() {
	status=$?
	trap - EXIT
	if mounted; then
		build/hipofs umount "$mnt" || fusermount3 -u -z "$mnt" || umount -l "$mnt" || true
	fi
	mounted || rm -rf "$folder"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# try COMMAND...: print a command as one would type it, and run it.
try() {
	printf '\n$ '
	printf '%s ' "$@"
	printf '\n'
	"$@"
}
numpy() {
	printf '\n$ python -c "%s"\n' "$1"
	(cd "$mnt" && "$OLDPWD/.venv/bin/python" -c "$1")
}

echo "A file of 16 events by the C++ library: the banks are folders, the columns are .npy files."
try build/hipofs hipo/testdata/cpp_golden_lz4.hipo "$mnt"
try ls "$mnt" "$mnt/REC::Particle"
numpy "import numpy as np
px = np.load('REC::Particle/px.npy', mmap_mode='r')
offsets = np.load('REC::Particle/offsets.npy')
print(px.dtype, px.shape, px[:5])
print('rows of event 3:', px[offsets[3]:offsets[4]])"
try build/hipofs umount "$mnt"

printf '\nA file of 101 events from CLAS12 reconstruction: 194 banks are declared, these have rows.\n'
try build/hipofs integration/testdata/clas12_recon_proton_80MeV.hipo "$mnt"
try ls "$mnt/.hipofs/populated"
numpy "import numpy as np
b = 'MC::Particle/'
p = np.sqrt(sum(np.load(b + c + '.npy').astype('f8')**2 for c in ('px', 'py', 'pz')))
print(len(p), 'protons, mean momentum', p.mean().round(4), 'GeV')"
try build/hipofs umount "$mnt"

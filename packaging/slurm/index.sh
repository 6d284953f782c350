#!/bin/bash
# Indexes the files of a run, each task of the array a slice of them:
#
#   sbatch --array=0-9 index.sh /cache/run5042/*.hipo
#
# Files that have an index are passed over, so after a failure the same line does
# what is missing. HIPOFS_INDEX_DIR says where indexes go (~/.cache/hipofs).
#SBATCH --job-name=hipofs-index
#SBATCH --array=0-9
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=1G
#SBATCH --time=01:00:00
set -euo pipefail

step=${SLURM_ARRAY_TASK_STEP:-1}
slices=$(((SLURM_ARRAY_TASK_MAX - SLURM_ARRAY_TASK_MIN) / step + 1))
slice=$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / step))
if [ $# -eq 0 ] || [ "$slices" -ne "$SLURM_ARRAY_TASK_COUNT" ]; then
	echo "usage: sbatch --array=0-9 index.sh FILE...   (an array without gaps: each task has one slice of as many)" >&2
	exit 2
fi
mine=()
for ((i = slice + 1; i <= $#; i += slices)); do
	mine+=("${!i}")
done
[ ${#mine[@]} -gt 0 ] || exit 0 # there are more tasks than files
exec hipofs index --threads "${SLURM_CPUS_PER_TASK:-1}" "${mine[@]}"

#!/bin/bash
# One mount on each node of the job, and in it a worker on each of its processors:
#
#   sbatch --nodes=4 node.sh /cache/run5042/*.hipo -- python worker.py
#
# A worker finds its number in $WORKER, how many there are in $WORKERS, and the
# files in $HIPOFS_MNT. The first that fails gives the job its status.
#SBATCH --job-name=workers
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
set -euo pipefail

sources=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	sources+=("$1")
	shift
done
if [ ${#sources[@]} -eq 0 ] || [ $# -lt 2 ]; then
	echo "usage: sbatch node.sh FILE... -- COMMAND..." >&2
	exit 2
fi
shift

# Workers that srun started would be children of slurmd, and not see the mount:
# srun starts one hipofs a node, and that node's workers are its children.
# shellcheck disable=SC2016 # expanded on the node
exec srun --nodes="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
	hipofs run "${sources[@]}" -- bash -c '
		n=$SLURM_CPUS_PER_TASK workers=() status=0
		for ((i = 0; i < n; i++)); do
			WORKER=$((SLURM_NODEID * n + i)) WORKERS=$((SLURM_NNODES * n)) "$@" &
			workers+=($!)
		done
		for w in "${workers[@]}"; do
			wait "$w" || { s=$?; [ "$status" -ne 0 ] || status=$s; }
		done
		exit "$status"' worker "$@"

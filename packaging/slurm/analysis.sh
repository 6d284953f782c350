#!/bin/bash
# Runs an analysis that finds the files mounted in $HIPOFS_MNT:
#
#   sbatch analysis.sh /cache/run5042/*.hipo -- python analysis.py
#
# Options of "hipofs run" may stand before the files. The mount ends with the
# job, however that ends, and its status is that of the analysis.
#SBATCH --job-name=analysis
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
set -euo pipefail

# exec: what Slurm sends to the batch script reaches the analysis.
exec hipofs run --threads "${SLURM_CPUS_PER_TASK:-1}" "$@"

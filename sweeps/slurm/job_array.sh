#!/bin/bash
# A sweep as a plain job array: each job runs its share, and none waits for another.
#
#     sbatch --array=1-8 sweeps/slurm/job_array.sh sweeps/learning_rate_5_1_2.yaml [options of fml sweep]
#
# Jobs need the same files: the repository and the sweep's folder lie on a shared disk. Cancelled or timed out, submit
# the same line again: only what is missing is run.
#SBATCH --job-name=fml-sweep
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=02:00:00
set -euo pipefail

exec "${PYTHON:-.venv/bin/python}" -m fml_tf sweep "$@" \
    --shard "${SLURM_ARRAY_TASK_ID:?run this with sbatch --array=1-N}/${SLURM_ARRAY_TASK_COUNT:?}" \
    --workers "${SLURM_CPUS_PER_TASK:-1}"

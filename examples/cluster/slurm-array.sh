#!/usr/bin/env bash
# Parses a text by an array of Slurm jobs, one shard each, and merges the shards when all are done:
#
#     examples/cluster/slurm-array.sh SHARDS --input train.en --output train.en.conllu --lang en …
#
# The files must be on a file system that all nodes share. Given again after a failure, it parses what is missing.
# What sbatch needs besides (a partition, an account, memory, a GPU) is given in SBATCH_OPTIONS.
set -euo pipefail
shards=$1
shift
# In single quotes, for the sh in which Slurm runs it: bash's own %q writes $'…' where the locale is C.
quote="'\\''"
command=$(for word in fairseq-syntax parse "$@"; do printf "'%s' " "${word//\'/$quote}"; done)
array=$(sbatch --parsable ${SBATCH_OPTIONS:-} --job-name parse --array "1-$shards" \
    --wrap "srun $command --shard \$SLURM_ARRAY_TASK_ID/$shards")
merge=$(sbatch --parsable ${SBATCH_OPTIONS:-} --job-name merge --dependency "afterok:$array" --kill-on-invalid-dep=yes \
    --wrap "srun $command --merge")
echo "shards: job $array; merge: job $merge"

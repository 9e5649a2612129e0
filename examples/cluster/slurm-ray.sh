#!/usr/bin/env bash
#SBATCH --job-name=ray
#SBATCH --ntasks-per-node=1
# Starts Ray on the nodes of a Slurm job, and runs a command that takes --ray on them:
#
#     sbatch --nodes 2 --cpus-per-task 16 examples/cluster/slurm-ray.sh fairseq-syntax parse --input train.en …
#
# The script adds "--ray ADDRESS". Files must be on a file system that all nodes share. A job that was killed, or ran
# into its time limit, is continued by submitting it again.
# HEAD_ADDRESS and NODE_ADDRESS: of the first node and of the others, where the first IPv4 address is not the one to use.
# RAY_PORT: of the head, where that of the job is taken.
set -euo pipefail
# Not Ray's 6379, which another job on the node may have; above the ports of Ray's workers and below the system's own.
port=${RAY_PORT:-$((20000 + SLURM_JOB_ID % 12000))}
cpus=${SLURM_CPUS_PER_TASK:-1}
export RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1
# A password of this job's cluster, which others on these nodes are to have no access to; srun hands it on.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

address_of() { # the address that other nodes reach a node by; its name may stand for 127.0.1.1 on the node itself
    srun --overlap --nodes 1 --ntasks 1 -w "$1" sh -c 'hostname --ip-address; hostname -I || true' | tr ' ' '\n' |
        awk '/^[0-9.]+$/ && !/^127[.]/ && !found++'
}
start() { # NODE ARGUMENTS…: Ray in the foreground of a step, which ends with the job
    local node=$1
    shift
    for _ in 1 2 3; do # Ray gives up after half a minute on a machine with much else to do
        srun --overlap --nodes 1 --ntasks 1 --cpus-per-task "$cpus" -w "$node" \
            ray start --block --num-cpus "$cpus" --disable-usage-stats "$@" && break
    done > "ray-$SLURM_JOB_ID-$node.log" 2>&1 &
    steps+=($!)
}

steps=()
trap 'kill "${steps[@]}" 2> /dev/null || true; wait' EXIT
head=${HEAD_ADDRESS:-$(address_of "${nodes[0]}")}
start "${nodes[0]}" --head --node-ip-address "$head" --port "$port" --include-dashboard=false
head_runs() { # otherwise the wait would be for nothing, or for the cluster of another
    if ! kill -0 "${steps[0]}" 2> /dev/null; then
        echo "Ray has not started, or has ended, on ${nodes[0]}: see ray-$SLURM_JOB_ID-${nodes[0]}.log" >&2
        exit 1
    fi
}
for ((i = 0; i < 120; i++)); do
    head_runs
    if (exec 3<> "/dev/tcp/$head/$port") 2> /dev/null; then break; fi
    sleep 1
done
for node in "${nodes[@]:1}"; do
    start "$node" --address "$head:$port" --node-ip-address "${NODE_ADDRESS:-$(address_of "$node")}"
done
for ((i = 0; i < 120; i++)); do # the command would begin with the head alone otherwise
    alive=$(RAY_ADDRESS=$head:$port python - 2> /dev/null << 'EOF' || true
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
EOF
    )
    alive=${alive:-0}
    head_runs
    if [ "$alive" -ge "${#nodes[@]}" ]; then break; fi
    sleep 1
done
echo "Ray: $alive of ${#nodes[@]} nodes at $head:$port"
"$@" --ray "$head:$port"

#!/bin/bash
# Runs the command that follows the name of this file once on each node. A copy of it, named in slurm_template, is the
# place for what a cluster needs: #SBATCH lines for account and memory, modules to load.
# These are flags of sbatch, which override lines here: job name, output, partition, nodes, time limit. So are GPUs and
# CPUs, unless a line here requests them (--gpus..., --gres; --cpus-per-task).
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120

# The training saves and ends on SIGTERM. A preempted job must then be requeued here if its grace time is not over yet.
requeue_if_preempted() {
    scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]' && scontrol requeue "$SLURM_JOB_ID"
}
trap requeue_if_preempted EXIT

export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
# A node that ends early ends the others after five minutes, in which the first one may still save.
srun --kill-on-bad-exit=0 --wait=300 "$@"

#!/bin/sh
# Epilog=/etc/slurm/epilog.sh: where a job was killed together with `ddp-doctor run`, its black boxes remain in shared memory.
# They are moved to ~/ddp-doctor-runs/slurm-JOBID-NODE of the job's user and diagnosed, as this user.
program=/usr/local/bin/ddp-doctor

[ -x "$program" ] && [ -n "$SLURM_JOB_ID" ] || exit 0
# shellcheck disable=SC2016 # expanded by the inner shell
script='
    job=/dev/shm/ddp-doctor-$(id -u)/slurm-$2
    for boxes in "$job" "$job"[-._]*; do
        [ -d "$boxes" ] || continue
        kept=$HOME/ddp-doctor-runs/slurm-$2-$3
        mkdir -p "$kept" && cp -r "$boxes" "$kept" && rm -r "$boxes"
    done
    [ -z "$kept" ] || timeout 60 "$1" analyze --format json "$kept" >"$kept/report.json"
'
runuser -u "$SLURM_JOB_USER" -- env HOME="$(getent passwd "$SLURM_JOB_USER" | cut -d: -f6)" \
    sh -c "$script" epilog "$program" "$SLURM_JOB_ID" "${SLURMD_NODENAME:-$(hostname -s)}"
# A failure must not drain the node.
exit 0

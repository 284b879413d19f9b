#!/bin/sh
# TaskProlog=/etc/slurm/task-prolog.sh: reports the ranks of every job to the coordinator of its user, without a change
# of the job. A user who wants this has the address of his coordinator in ~/.config/ddp-doctor/coordinator and its token
# in ~/.config/ddp-doctor/token (mode 600), and ddp-doctor in the Python environment of the job.
# Slurm sets the variables that this prints.
folder=$HOME/.config/ddp-doctor

[ -z "$DDP_DOCTOR_COORDINATOR" ] && [ -r "$folder/coordinator" ] || exit 0
echo "export DDP_DOCTOR_COORDINATOR=$(head -n 1 "$folder/coordinator")"
echo "export DDP_DOCTOR_TOKEN_FILE=$folder/token"
echo "export DDP_DOCTOR_JOB=slurm-$SLURM_JOB_ID"

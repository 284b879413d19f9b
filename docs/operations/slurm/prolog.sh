#!/bin/sh
# Prolog=/etc/slurm/prolog.sh: checks the node before each job, as root. Slurm drains the node and requeues the job if a
# line is CRITICAL; `journalctl -t ddp-doctor` has the lines.
program=/usr/local/bin/ddp-doctor

[ -x "$program" ] || exit 0
lines=$(timeout 30 "$program" check --fail-on critical 2>&1)
status=$?
echo "$lines" | logger -t ddp-doctor 2>/dev/null
# Any other status is not a statement about the node.
[ "$status" -ne 1 ]

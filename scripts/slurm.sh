#!/usr/bin/env bash
# Runs COMMAND... where Slurm is: one node and its daemons on this machine, for as long as the command takes. Root alone can.
#
#   scripts/slurm.sh COMMAND...
set -euo pipefail
[ "$(id -u)" -eq 0 ] || { echo "slurm: only root can start Slurm's daemons" >&2; exit 1; }
for program in munged slurmctld slurmd; do
	command -v $program >/dev/null || { echo "slurm: install Slurm and run this again: apt-get install slurmctld slurmd munge" >&2; exit 1; }
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/hipofs-slurm.XXXXXX")
chmod 755 "$dir"
mkdir "$dir/state" "$dir/spool" "$dir/munge"
daemons=()
finish() {
	status=$?
	trap - EXIT
	for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
		kill "${daemons[i]}" 2>/dev/null || true
		wait "${daemons[i]}" 2>/dev/null || true
	done
	[ "$status" -eq 0 ] || tail -n 20 "$dir"/*.log >&2
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT

node=$(hostname -s)
cat >"$dir/slurm.conf" <<END
ClusterName=here
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(free -m | awk '/^Mem:/ {print $2}') State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF=$dir/slurm.conf

head -c 128 /dev/urandom >"$dir/munge/key"
chmod 600 "$dir/munge/key"
munged --foreground --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
	--seed-file="$dir/munge/seed" >"$dir/munged.log" 2>&1 &
daemons+=($!)
slurmctld -D -c >"$dir/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D >"$dir/slurmd.log" 2>&1 &
daemons+=($!)
timeout 60 bash -c 'until sinfo -h -t idle 2>/dev/null | grep -q .; do sleep 0.2; done'

"$@"

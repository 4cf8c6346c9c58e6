#!/bin/bash
# A Slurm cluster on this one host, for tests: its own keys, ports and folders, no system service.
#   slurm.sh up FOLDER [NODES=3] [CPUS_PER_NODE=2]   prints the path of slurm.conf: export SLURM_CONF=...
#   slurm.sh down FOLDER                             ends its daemons
# FOLDER is made by the caller, and holds everything. Needs root, and the packages slurmctld slurmd
# slurm-client munge (Debian 12: Slurm 22.05; Ubuntu 24.04: 23.11).
set -euo pipefail

usage() { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
action=$1 folder=$2 nodes=${3:-3} cpus=${4:-2}

# A port that nobody listens on, and that no outgoing connection is given.
free_ports() {
  python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in sockets:
    s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in sockets])
PYTHON
}

write_configuration() {
  local host=$1 controller=$2
  shift 2
  cat <<CONF
ClusterName=troika
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
  local node=1
  for port in "$@"; do
    echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=$cpus State=UNKNOWN"
    node=$((node + 1))
  done
}

up() {
  for program in munged slurmctld slurmd srun; do
    command -v $program >/dev/null || { echo "slurm.sh: $program is not installed" >&2; exit 1; }
  done
  chmod 755 "$folder"
  mkdir -p "$folder/state"
  head -c 1024 /dev/urandom >"$folder/munge.key"
  chmod 400 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
  # shellcheck disable=SC2046
  write_configuration "$(hostname -s)" $(free_ports $((nodes + 1))) >"$folder/slurm.conf"
  export SLURM_CONF=$folder/slurm.conf
  for node in $(seq "$nodes"); do mkdir -p "$folder/spool-n$node"; done
  slurmctld -c
  for node in $(seq "$nodes"); do slurmd -N "n$node"; done
  # Nothing but the controller tells when its nodes are ready.
  for _ in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null | head -1)" = "$nodes" ] && { echo "$SLURM_CONF"; return; }
    sleep 0.1
  done
  echo "slurm.sh: the nodes do not become idle; see $folder/*.log" >&2
  exit 1
}

down() {
  for file in "$folder"/slurmd-*.pid "$folder"/slurmctld.pid "$folder"/munged.pid; do
    [ -e "$file" ] || continue
    local pid
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || continue
    timeout 10 tail --pid="$pid" -f /dev/null || kill -9 "$pid" 2>/dev/null || true
  done
}

case $action in up) up ;; down) down ;; *) usage ;; esac

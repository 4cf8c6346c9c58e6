#!/bin/bash
# Hosts that share nothing but a network, for tests: network namespaces PREFIX-1 to PREFIX-N with the
# addresses 10.99.0.1 to 10.99.0.N. They are joined by a bridge in a namespace of its own
# (PREFIX-switch); or, with the program lab_wire, by a link with a delay and a rate for each host.
#   netns.sh up PREFIX [N=2]
#   netns.sh up PREFIX N LAB_WIRE DELAY_MS RATE_MBIT
#   netns.sh down PREFIX
#   ip netns exec PREFIX-1 COMMAND
# Needs root and the package iproute2.
set -euo pipefail

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
action=$1 prefix=$2 hosts=${3:-2} wire=${4:-} delay=${5:-0} rate=${6:-1000}
wire_pid=/run/troika-lab-$prefix.pid

down() {
  if [ -e "$wire_pid" ]; then
    kill "$(cat "$wire_pid")" 2>/dev/null || true
    rm -f "$wire_pid"
  fi
  for name in $(ip netns list | awk -v start="$prefix-" 'index($1, start) == 1 {print $1}'); do
    ip netns del "$name"
  done
}

join_by_bridge() {
  ip netns add "$prefix-switch"
  ip -n "$prefix-switch" link add bridge type bridge
  ip -n "$prefix-switch" link set bridge up
  for host in $(seq "$hosts"); do
    ip -n "$prefix-switch" link add "port$host" type veth peer name eth0 netns "$prefix-$host"
    ip -n "$prefix-switch" link set "port$host" master bridge up
  done
}

join_by_wire() {
  local answer
  exec {ready}< <(exec "$wire" "$prefix" "$hosts" "$delay" "$rate")
  echo $! >"$wire_pid"
  read -r -t 10 answer <&"$ready" && [ "$answer" = ready ]
  for host in $(seq "$hosts"); do ip -n "$prefix-$host" link set eth0 mtu 9000; done
}

up() {
  for host in $(seq "$hosts"); do
    ip netns add "$prefix-$host"
    ip -n "$prefix-$host" link set lo up
  done
  if [ -n "$wire" ]; then join_by_wire; else join_by_bridge; fi
  for host in $(seq "$hosts"); do
    ip -n "$prefix-$host" addr add "10.99.0.$host/24" dev eth0
    ip -n "$prefix-$host" link set eth0 up
  done
}

case $action in up) up ;; down) down ;; *) usage ;; esac

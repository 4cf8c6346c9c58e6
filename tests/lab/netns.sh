#!/bin/bash
# Hosts that share nothing but a network, for tests: network namespaces PREFIX-1 to PREFIX-N with the
# addresses 10.99.0.1 to 10.99.0.N, joined by a bridge in a namespace of its own (PREFIX-switch).
#   netns.sh up PREFIX [N=2]
#   netns.sh down PREFIX
#   ip netns exec PREFIX-1 COMMAND
# Needs root and the package iproute2.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
action=$1 prefix=$2 hosts=${3:-2}

down() {
  for name in $(ip netns list | awk -v start="$prefix-" 'index($1, start) == 1 {print $1}'); do
    ip netns del "$name"
  done
}

up() {
  ip netns add "$prefix-switch"
  ip -n "$prefix-switch" link add bridge type bridge
  ip -n "$prefix-switch" link set bridge up
  for host in $(seq "$hosts"); do
    ip netns add "$prefix-$host"
    ip -n "$prefix-$host" link set lo up
    ip -n "$prefix-switch" link add "port$host" type veth peer name eth0 netns "$prefix-$host"
    ip -n "$prefix-switch" link set "port$host" master bridge up
    ip -n "$prefix-$host" addr add "10.99.0.$host/24" dev eth0
    ip -n "$prefix-$host" link set eth0 up
  done
}

case $action in up) up ;; down) down ;; *) usage ;; esac

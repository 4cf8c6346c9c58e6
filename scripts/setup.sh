#!/usr/bin/env bash
# Installs the system packages that are missing: scripts/setup.sh [build|test|lint|fuzz]...
# Root installs them; anybody else gets the one line to run (exit code 2). Never calls sudo.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
groups=" ${*:-build} fast "

# The packages of the wanted groups that are missing, "required NAME" or "optional NAME" a line.
missing() {
  local group package provider
  while read -r group package provider; do
    [[ $group == \#* || -z $group || $groups != *" $group "* ]] && continue
    [[ -n $provider ]] && bash -c "$provider" > /dev/null 2>&1 && continue
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) == installed ]] && continue
    [[ $group == fast ]] && echo "optional $package" || echo "required $package"
  done < "$here/packages.txt"
}

# Lists that are absent, older than a day or too old to resolve the packages are fetched anew.
refresh_lists() {
  if [[ -z $(find /var/lib/apt/lists -maxdepth 0 -mtime -1) ]] || ! apt-get install -s "$@" > /dev/null 2>&1; then
    echo "-- Fetching the package lists" >&2
    apt-get update -qq
  fi
}

# New daemons (prometheus, munge, slurmd) are for the tests, which start their own: neither start nor enable them.
without_services() {
  local policy=/usr/sbin/policy-rc.d unit
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod +x $policy
    trap "rm -f $policy" EXIT
  fi
  "$@"
  if command -v systemctl > /dev/null; then
    for unit in prometheus munge slurmctld slurmd; do
      [[ " $* " == *" $unit "* ]] && systemctl disable -q $unit 2> /dev/null || true
    done
  fi
}

install() {
  local log
  log=$(mktemp)
  echo "-- Installing $# packages: $*" >&2
  if ! DEBIAN_FRONTEND=noninteractive without_services apt-get install -y -qq --no-install-recommends "$@" > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup.sh: apt-get could not install them; its last lines are above, all of them in $log" >&2
    exit 1
  fi
  rm -f "$log"
}

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "-- Not a Debian or Ubuntu machine: install what $here/packages.txt lists with your package manager" >&2
  exit 0
fi

mapfile -t found < <(missing)
required=() all=()
for line in "${found[@]}"; do
  all+=("${line#* }")
  [[ $line == required* ]] && required+=("${line#* }")
done
if [[ ${#all[@]} == 0 || ( ${#required[@]} == 0 && $EUID != 0 ) ]]; then
  echo "-- System packages (${*:-build}): all there; nothing installed" >&2
elif [[ $EUID == 0 ]]; then
  refresh_lists "${all[@]}"
  install "${all[@]}"
else
  echo "Some system packages are missing. Run this line, then the same command again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${all[*]}" >&2
  exit 2
fi

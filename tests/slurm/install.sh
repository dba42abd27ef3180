#!/bin/bash
# Installs what the one-host SLURM of tests/slurm/cluster.py needs, on Debian or the like; run as root.
# The packages start no daemon: the cluster fixture starts its own and stops them again.
#
# Only munge, the controller, the node daemon and the client commands: the profile asks `squeue` for the state of
# jobs, so neither slurmdbd nor a database is needed.
set -euo pipefail

if [ "$(id -u)" != 0 ]; then
    echo "install.sh: run as root (packages and, later, SLURM's daemons need it)" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "install.sh: needs apt-get (Debian or Ubuntu); elsewhere install munge, slurmctld, slurmd and slurm-client" >&2
    exit 1
fi

# A policy file that forbids the packages' scripts to start daemons, removed again at the end. One that is there
# already is the host's own business and stays as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins
slurmctld -V

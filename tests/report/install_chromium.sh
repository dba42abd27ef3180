#!/bin/bash
# Installs the headless browser of tests/report/test_scorecard_in_a_browser.py, on Debian or the like; run as root.
set -euo pipefail

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "install_chromium.sh: run as root (it installs packages)" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "install_chromium.sh: needs apt-get (Debian or Ubuntu); elsewhere install chromium and chromedriver" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium chromium-driver

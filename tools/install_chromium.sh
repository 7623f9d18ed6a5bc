#!/bin/sh
# Chromium for the browser tests: what is present is used; as root on Debian or Ubuntu it is
# installed; otherwise the command to run is printed.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
install="apt-get install -y chromium fonts-dejavu-core"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the browser tests: $install"
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    apt-get update -qq
    $install >/dev/null
else
    echo "The browser tests need Chromium. Install it, for example with: sudo $install" >&2
    exit 1
fi

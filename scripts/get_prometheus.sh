#!/bin/sh
# Prometheus, promtool and Alertmanager for the tests that run them: Debian's packages, unpacked into FOLDER, no root.
#   scripts/get_prometheus.sh FOLDER
# Prints the folder to put on PATH; exit 1, with a sentence, where they cannot be had. Does nothing on a second run.
set -eu
folder=$1
bin="$folder/usr/bin"
if [ -x "$bin/prometheus" ]; then printf '%s\n' "$bin"; exit 0; fi
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || {
  echo "cadenza: no apt-get here: install Prometheus from https://prometheus.io/download and put it on PATH" >&2; exit 1; }
mkdir -p "$folder/deb"
cd "$folder/deb"
if ! apt-get download prometheus prometheus-alertmanager >download.log 2>&1; then
  # A fresh container has no package lists yet.
  apt-get update >>download.log 2>&1 && apt-get download prometheus prometheus-alertmanager >>download.log 2>&1 || {
    echo "cadenza: Debian's prometheus package cannot be fetched: $(tail -1 download.log)" >&2; exit 1; }
fi
for package in *.deb; do dpkg -x "$package" ..; done
cd - >/dev/null
printf '%s\n' "$bin"

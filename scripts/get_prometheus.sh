#!/bin/sh
# Prometheus, promtool and Alertmanager for the tests that run them: Debian's packages, unpacked into FOLDER.
#   scripts/get_prometheus.sh FOLDER [SUITE]
#   SUITE   another release of Debian than this machine's: forky has Prometheus 3, bookworm 2.42; with docker compose 2
# Prints the folder to put on PATH; exit 1, with a sentence, where they cannot be had. Does nothing on a second run.
set -eu
folder=$1 suite=${2:-}
bin="$folder/usr/bin"
templates=/usr/share/prometheus/alertmanager
# Debian's Alertmanager reads its templates from there, wherever it lies itself, and ends without them.
give_templates() {
  [ -x "$bin/prometheus-alertmanager" ] && [ ! -e "$templates/email.tmpl" ] || return 0
  mkdir -p "$templates" 2>/dev/null && cp "$folder$templates"/*.tmpl "$templates" 2>/dev/null && return 0
  rm "$bin/prometheus-alertmanager"
  echo "cadenza: no Alertmanager: it needs $templates; as root: apt-get install prometheus-alertmanager" >&2
}
if [ -x "$bin/prometheus" ] && [ -x "$bin/promtool" ]; then give_templates; printf '%s\n' "$bin"; exit 0; fi
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || {
  echo "cadenza: no apt-get here: install Prometheus from https://prometheus.io/download and put it on PATH" >&2; exit 1; }
mkdir -p "$folder/deb"
here=$(pwd)
cd "$folder/deb"
say_why() { echo "cadenza: Debian's prometheus package cannot be fetched: $(grep '^[EW]:' download.log | tail -1)" >&2; exit 1; }

if [ -n "$suite" ]; then
  # Lists of its own, so that nothing else on this machine sees that release.
  mkdir -p lists/partial
  mirror=$(sed -nE 's/^(deb .*|URIs: *)(https?:[^ ]*\/debian)\/?( .*|$)/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -1)
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "${mirror:-https://deb.debian.org/debian}" "$suite" >sources.list
  apt() {
    apt-get -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null \
      -o "Dir::State::lists=$PWD/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
  }
else
  apt() { apt-get "$@"; }
fi
# In Debian 14 promtool is a package of its own.
fetch() { apt download prometheus prometheus-alertmanager >>download.log 2>&1 && { apt download promtool >/dev/null 2>&1 || true; }; }
: >download.log
# A fresh container has no package lists yet.
fetch || { apt update >>download.log 2>&1 && fetch; } || say_why
# Compose is a plug-in that also runs by itself; before Debian 13 the package of that name is another program.
[ -z "$suite" ] || apt download docker-compose >/dev/null 2>&1 || true
for package in *.deb; do dpkg -x "$package" ..; done
plugin=usr/libexec/docker/cli-plugins/docker-compose
if [ -e "../$plugin" ] && [ ! -e ../usr/bin/docker-compose ]; then ln -s "../../$plugin" ../usr/bin/docker-compose; fi
cd "$here"
give_templates
printf '%s\n' "$bin"

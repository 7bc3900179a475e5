#!/bin/sh
# The tests, on every Python from 3.11 to 3.13 that is installed: unit tests on each, slow ones once, on the first.
set -eu
# What a shell sets for its own programs must not change what the tests see.
unset CADENZA_API_KEY CADENZA_ENGINE_API_KEY 2>/dev/null || true

find_python() {
  for candidate in "python$1" $(pyenv root 2>/dev/null | sed "s|\$|/versions/$1.*/bin/python|"); do
    if [ "$("$candidate" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
      echo "$candidate"
      return
    fi
  done
}

tested='' missing='' failed='' first=yes
for version in 3.11 3.12 3.13; do
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    missing="$missing $version"
    continue
  fi
  folder=".venv-$version"
  scripts/venv.sh "$folder" "[dev]" "$python"
  selection="not slow"
  if [ "$first" = yes ]; then selection="slow or not slow"; fi
  echo "== Python $version: $selection" >&2
  "$folder/bin/python" -m pytest -q -m "$selection" ${PYTEST_FLAGS:-} || failed="$failed $version"
  tested="$tested $version"
  first=no
done
if [ -z "$tested" ]; then
  echo "cadenza: no Python 3.11, 3.12 or 3.13 with its venv module was found (Debian, Ubuntu: apt install python3 python3-venv)" >&2
  exit 1
fi
for version in $missing; do
  echo "skipped: Python $version is not installed (pyenv install $version, or apt install python$version python$version-venv)"
done
if [ -n "$failed" ]; then
  echo "FAILED on Python$failed"
  exit 1
fi
echo "passed on Python$tested"

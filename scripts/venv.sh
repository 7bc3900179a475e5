#!/bin/sh
# Make a virtual environment with cadenza in it: scripts/venv.sh FOLDER EXTRAS [PYTHON]
#   EXTRAS  "" for the base install, "[dev]" for what the tests need, "[dev,bench]" for the benchmarks too
# Does nothing where FOLDER is up to date. Every failure is one sentence that says what to do.
set -eu
folder=$1 extras=$2 python=${3:-}
log="$folder/install.log"

# A user's settings for pip and Python must not decide where this install goes.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV || true
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$1" >&2; }
fail() { say "cadenza: $1"; exit 1; }
failed_with() { grep -Eqi "$1" "$log"; }

# A command that exists is not enough: version managers put shims on PATH that refuse to run.
works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

# The newest that works and can make environments, else the newest that works.
pick_python() {
  found=''
  for candidate in python3.13 python3.12 python3.11 python3; do
    if works "$candidate"; then
      if has_venv "$candidate"; then found=$candidate; break; fi
      found=${found:-$candidate}
    fi
  done
  printf '%s' "$found"
}

make_folder() {
  [ -n "$python" ] || python=$(pick_python)
  [ -n "$python" ] ||
    fail "no Python 3.11 or newer was found; install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)"
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  has_venv "$python" ||
    fail "Python $version has no venv module; install it (Debian, Ubuntu: apt install python3-venv, or python$version-venv)"
  say "Making $folder with Python $version"
  "$python" -m venv --clear "$folder" >/dev/null || fail "$folder could not be made; is there room, and may you write here?"
}

explain() {
  if failed_with 'no space left'; then
    fail "the disk is full; cadenza needs about 300 MB for its tests and 100 MB without"
  elif failed_with "unknown compiler|Python\.h|command '?[^ ]*(cc|gcc|g\+\+|clang)[^ ]* ?failed|xcrun: error"; then
    fail "no ready-made package fits this machine and there is no C compiler to build one; install it (Debian, Ubuntu: apt install gcc python3-dev; macOS: xcode-select --install)"
  elif failed_with 'connection|resolution|timed out|unreachable|proxy|SSLError'; then
    fail "the package index could not be reached; check the network, the proxy (HTTPS_PROXY) or the index (PIP_INDEX_URL)"
  fi
  tail -n 5 "$log" >&2
  fail "the installation failed; the lines above are the end of $log"
}

# Tells the install that is wanted from an older one, and from one in a folder that has since been moved.
wanted="$PWD $(cksum <pyproject.toml)"
is_current() { [ -e "$1" ] && [ "$(cat "$1")" = "$wanted" ] && works "$folder/bin/python"; }

# Each of these holds what the ones before it do.
enough=''
for known in "" "[dev]" "[dev,bench]"; do
  if [ "$known" = "$extras" ]; then enough=yes; fi
  if [ -n "$enough" ] && is_current "$folder/.cadenza$known"; then exit 0; fi
done
works "$folder/bin/python" && "$folder/bin/python" -m pip --version >/dev/null 2>&1 || make_folder
say "Installing cadenza$extras (log: $log)"
"$folder/bin/python" -m pip install --progress-bar off -e ".$extras" >"$log" 2>&1 </dev/null || explain
printf '%s\n' "$wanted" >"$folder/.cadenza$extras"

#!/bin/sh
# Make a virtual environment with cadenza in it: scripts/venv.sh FOLDER EXTRAS [PYTHON]
#   EXTRAS  "" for the base install, "[dev]" for what the tests need
# Does nothing where FOLDER is up to date. Every failure is one sentence that says what to do.
set -eu
folder=$1 extras=$2 python=${3:-}
stamp="$folder/.cadenza$extras"

fail() { printf 'cadenza: %s\n' "$1" >&2; exit 1; }

# A command that exists is not enough: version managers put shims on PATH that refuse to run.
works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

[ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ] && [ -x "$folder/bin/python" ] && exit 0

if [ -z "$python" ]; then
  for candidate in python3.13 python3.12 python3.11 python3; do
    if works "$candidate"; then python=$candidate; break; fi
  done
fi
[ -n "$python" ] || fail "no Python 3.11 or newer was found; install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
  fail "Python $version has no venv module; install it (Debian, Ubuntu: apt install python$version-venv)"

echo "Making $folder with Python $version…" >&2
"$python" -m venv "$folder" || fail "$folder could not be made; is there room, and may you write here?"
log="$folder/install.log"
echo "Installing cadenza${extras} (log: $log)…" >&2
if ! "$folder/bin/python" -m pip install --disable-pip-version-check --no-input -q -e ".$extras" >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  if grep -Eqi 'gcc|clang|cc1|Python\.h|error: command|Microsoft Visual' "$log"; then
    fail "a library had to be built and there is no C compiler; install one (Debian, Ubuntu: apt install build-essential python3-dev; macOS: xcode-select --install)"
  elif grep -Eqi 'connection|resolve|timed out|network|proxy' "$log"; then
    fail "the package index could not be reached; check the network, or set PIP_INDEX_URL"
  fi
  fail "the installation failed; the lines above are the end of $log"
fi
touch "$stamp"

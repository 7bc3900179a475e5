#!/bin/sh
# The tests, on every Python from 3.11 to 3.13 that is installed: unit tests on each, slow ones once, on the first.
# PYTEST_FLAGS goes to every pytest.
set -eu
# What a shell sets for its own programs must not change what the tests see.
unset CADENZA_API_KEY CADENZA_ENGINE_API_KEY PYTHONPATH PYTHONHOME PYTHONWARNINGS PYTEST_ADDOPTS || true

# Those on PATH first; then those that pyenv has but does not put forward.
list_pythons() {
  printf '%s\n' "python$1" python3
  root=$(pyenv root 2>/dev/null) || return 0
  for python in "$root/versions/$1."*/bin/python; do printf '%s\n' "$python"; done
}

# Print the first Python $1 that can run "import $2".
find_python() {
  list_pythons "$1" | while IFS= read -r candidate; do
    told=$("$candidate" -c "import sys, $2; print('%d.%d' % sys.version_info[:2])" 2>/dev/null </dev/null) || continue
    if [ "$told" = "$1" ]; then
      printf '%s\n' "$candidate"
      break
    fi
  done
}

tested='' skipped='' failed=''
for version in 3.11 3.12 3.13; do
  python=$(find_python "$version" venv,ensurepip)
  if [ -z "$python" ]; then
    skipped="$skipped $version"
    reason="is not installed: apt install python$version python$version-venv, or pyenv install $version"
    [ -z "$(find_python "$version" os)" ] || reason="has no venv module: apt install python$version-venv"
    echo "== Python $version skipped: it $reason"
    continue
  fi
  echo "== Python $version found: $python"
  folder=".venv-$version"
  selection="not slow"
  [ -n "$tested" ] || selection="slow or not slow"
  tested="$tested $version"
  # shellcheck disable=SC2086 # the flags are words
  scripts/venv.sh "$folder" "[dev]" "$python" &&
    "$folder/bin/python" -m pytest -q -m "$selection" ${PYTEST_FLAGS:-} || failed="$failed $version"
done
if [ -z "$tested" ]; then
  echo "cadenza: no Python 3.11, 3.12 or 3.13 with its venv module was found; install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13)" >&2
  exit 1
fi
echo "== Tests ${failed:+FAILED on Python$failed; they }ran on Python$tested${skipped:+, not on$skipped (see above)}"
[ -z "$failed" ]

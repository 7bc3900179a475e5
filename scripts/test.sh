#!/bin/sh
# The unit tests, on every Python from 3.11 to 3.13 that is installed.   scripts/test.sh [slow]
#   slow   instead of them those that open sockets, start processes and wait, on the first Python
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

tested='' skipped=''
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
  scripts/venv.sh ".venv-$version" "[dev]" "$python" || exit 1
  tested="$tested $version"
done
if [ -z "$tested" ]; then
  echo "cadenza: no Python 3.11, 3.12 or 3.13 with its venv module was found; install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13)" >&2
  exit 1
fi

# shellcheck disable=SC2086 # the flags are words
run() { ".venv-$1/bin/python" -m pytest -q -m "$2" ${PYTEST_FLAGS:-}; }

if [ "${1:-}" = slow ]; then
  # These stop the clock: one after the other, on one Python.
  first=${tested# }; first=${first%% *}
  run "$first" slow
  echo "== The slow tests ran on Python $first"
  exit
fi

# Unit tests wait for nobody, so that all Pythons can be tested at once; the first one shows how it goes.
mkdir -p build
failed='' first='' others=''
for version in $tested; do
  if [ -z "$first" ]; then first=$version; continue; fi
  run "$version" "not slow" >"build/test-$version.log" 2>&1 &
  others="$others $version:$!"
done
run "$first" "not slow" || failed=" $first"
for pair in $others; do
  version=${pair%:*}
  if wait "${pair#*:}"; then
    echo "== Python $version: $(tail -1 "build/test-$version.log")"
  else
    failed="$failed $version"
    tail -60 "build/test-$version.log"
  fi
done
echo "== Tests ${failed:+FAILED on Python$failed; they }ran on Python$tested${skipped:+, not on$skipped (see above)}"
[ -z "$failed" ]

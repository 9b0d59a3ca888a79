#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" requirements-dev.txt
set -e
cd "$root"
# without bytecode, each process compiles our modules anew, up to 0.7 s, and those of pytest-xdist also the tests, 8 s
unset PYTHONDONTWRITEBYTECODE

"$python" -m ruff check .
"$python" -m ruff format --check .
# beside the tests, whose processes at first come from one core
types=$(mktemp)
trap 'kill $! 2>/dev/null || true; rm -f "$types"' EXIT
"$python" -m mypy >"$types" 2>&1 &
status=0
# each process takes the longest test file that is left (tests/support/suite/balance.py); on two cores, three leave
# none idle while one waits for the browser
"$python" -m pytest -n 3 --dist loadfile "$@" || status=$?
wait $! || status=$?
cat "$types"
exit "$status"

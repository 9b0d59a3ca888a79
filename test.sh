#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
# each process takes the longest test file that is left (tests/balance.py); on two cores, three leave none idle while one
# waits for the browser
exec "$python" -m pytest -n 3 --dist loadfile "$@"

#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
# two processes, each of which takes the longest test file that is left (tests/balance.py)
exec "$python" -m pytest -n 2 --dist loadfile "$@"

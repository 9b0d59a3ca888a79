#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # compiled code is very slow with more threads than free cores
# two test files at a time, the longest-running first
exec "$python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"

#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # compiled code is very slow with more threads than free cores
# two processes; one that has no tests left takes half of what is left to the other
exec "$python" -m pytest -n 2 --dist worksteal "$@"

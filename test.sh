#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # compiled code is very slow with more threads than free cores
# three processes, also on two cores: many tests wait for a browser or for processes of their own; one that has no tests
# left takes half of what is left to another
exec "$python" -m pytest -n 3 --dist worksteal "$@"

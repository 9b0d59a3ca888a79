#!/usr/bin/env bash
# Checks style and types, then runs the tests: bash test.sh [arguments of pytest]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # more threads than free cores make compiled code crawl
# two files of tests at a time; the first to start is the one that takes longest
exec "$python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"

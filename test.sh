#!/usr/bin/env bash
# Lint, check types, run the tests: bash test.sh [pytest arguments], for example -m fast
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
# three processes for two cores, since many tests wait for programs and pages that they start; one that has no tests
# left takes half of what is left to another
exec "$python" -m pytest -n 3 --dist worksteal "$@"

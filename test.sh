#!/usr/bin/env bash
# Checks style and types, then runs the tests: bash test.sh [arguments of pytest]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set -e
cd "$root"

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
exec "$python" -m pytest "$@"

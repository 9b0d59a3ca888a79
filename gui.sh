#!/usr/bin/env bash
# Opens the GUI in the browser: bash gui.sh [--listen ADDRESS] [--server_port PORT] ...
# A first training with nothing to download: bash gui.sh --demo [sdxl | flux] [flags of the training script]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if [ "$1" = "--demo" ]; then
    shift
    exec "$python" -m sd_scripts.demo "$@"
fi
exec "$python" "$root/gui.py" "$@"

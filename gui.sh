#!/usr/bin/env bash
# Serve the GUI: bash gui.sh [--inbrowser] [--listen ADDRESS] [--server_port PORT] ...
# Train on a miniature, without a model to download: bash gui.sh --demo [sdxl | flux | kontext | qwen] [flags of the training script]
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" requirements.txt

exec "$python" "$root/gui.py" "$@"

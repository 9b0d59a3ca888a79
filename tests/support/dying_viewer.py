"""Looks at images as `sd_scripts.dataset_view.serve` does, and ends at one with the key `deadly`, as a decoder may."""

import os
from collections.abc import Mapping
from typing import Any

from sd_scripts.machine.resident import serve


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    keys = [key for key, _ in request["images"]]
    if "deadly" in keys:
        os._exit(1)
    return {"measures": {key: {} for key in keys}, "problems": {}}


if __name__ == "__main__":
    serve(answer, most_bytes=2**40)

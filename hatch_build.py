"""Adds to an installed package what its code finds in the project folder otherwise."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COPIES = {
    "presets": "kohya_gui/presets",
    "pyproject.toml": "sd_scripts/tools/doctor/pyproject.toml",
    "requirements.txt": "sd_scripts/tools/doctor/requirements.txt",
}


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":  # which would copy them next to the environment's packages, where they hide ours
            build_data["force_include"].update(COPIES)

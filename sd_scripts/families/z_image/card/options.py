"""Values that train Z-Image well."""

from typing import Any

RECOMMENDED: dict[str, Any] = {"timestep_sampling": "shift", "discrete_flow_shift": 2.0}
"""The defaults are musubi-tuner's."""

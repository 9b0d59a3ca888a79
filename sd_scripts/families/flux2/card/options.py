"""The option that only FLUX.2 klein has: which of its models is used."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, optional

RECOMMENDED = {"timestep_sampling": "flux2_shift"}
"""Values that train FLUX.2 klein well; the default is musubi-tuner's."""


class Flux2ModelOptions(OptionGroup, title="FLUX.2 klein model"):
    """The version of the model."""

    flux2_version: Literal["klein-base-4b", "klein-base-9b", "klein-4b", "klein-9b", "dev"] | None = optional(
        "Which FLUX.2 is trained, as musubi-tuner's commands name it; the size is read from the file. Train a base "
        "model: the others were distilled to 4 steps.",
        label="FLUX.2 version",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.flux2_version == "dev":
            yield "flux2_version", "FLUX.2 dev is not supported; choose a klein model"

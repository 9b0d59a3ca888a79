"""Options that only FramePack has: its image encoder, which of its models is trained, and single frames."""

from collections.abc import Iterable

from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.spec import OptionGroup, option, path_option, switch

RECOMMENDED = {"timestep_sampling": "shift", "discrete_flow_shift": 3.0, "guidance_scale": 1.0}
"""Values that train FramePack well; the other defaults are musubi-tuner's."""
LAST = 28
"""The last place of what a section sees."""


class FramePackOptions(OptionGroup, title="FramePack model"):
    """FramePack's image encoder, the order in which sections are generated, and images as single frames."""

    image_encoder: str | None = path_option(
        "The SigLIP image encoder, such as sigclip_vision_patch14_384.safetensors.",
        label="Image encoder (SigLIP)",
        placeholder="/models/sigclip_vision_patch14_384.safetensors",
    )
    f1: bool = switch(
        "Train or generate with FramePack F1, whose sections are generated in order. Its files look like FramePack's, "
        "which generates the last section first.",
        label="F1",
    )
    fp_1f_target_index: int = option(
        9, "Place of the frame that is predicted where the sample is an image.", label="Target place", within=(0, LAST)
    )
    fp_1f_clean_indices: str = option(
        "0",
        "Places of the control images of an image, the first one's first: 0 or 0,10.",
        label="Places of control images",
    )
    fp_1f_no_post: bool = switch("Leave out the empty frame at place 10 where the sample is an image.")
    one_frame_no_2x: bool = switch("Leave out the empty frames in patches of 2x where the sample is an image.")
    one_frame_no_4x: bool = switch("Leave out the empty frames in patches of 4x where the sample is an image.")

    @property
    def clean_places(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.fp_1f_clean_indices.split(","))

    def check(self) -> Iterable[tuple[str, str]]:
        parts = [part.strip() for part in self.fp_1f_clean_indices.split(",")]
        if not all(is_whole_number(part) and int(part[:4]) <= LAST for part in parts):
            yield (
                "fp_1f_clean_indices",
                f"{self.fp_1f_clean_indices!r} is not a list of places from 0 to {LAST}; write 0 or 0,10",
            )

"""Options that only Wan 2.2 5B has."""

from sd_scripts.options.spec import OptionGroup, option


class Wan5BOptions(OptionGroup, title="Wan 2.2 5B", methods=("lora", "full")):
    """Text and image to video with one model."""

    first_frame_conditioning_p: float = option(
        0.0,
        "Train image to video: the probability with which a clip's first frame is given without noise, and only the "
        "others are predicted. 0 trains text to video, 0.5 both.",
        label="First frame given",
        within=(0.0, 1.0),
    )

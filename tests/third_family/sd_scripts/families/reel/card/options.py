"""Options that only Reel has."""

from sd_scripts.options.spec import OptionGroup, option


class ReelOptions(OptionGroup, title="Reel"):
    """How the text enters the model."""

    reel_text_scale: float = option(1.0, "Strength of the text.", within=(0.0, 10.0))

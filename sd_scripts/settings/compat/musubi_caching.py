"""musubi-tuner's caching scripts have nothing to do here, since the training script fills the caches."""

import sys
from pathlib import Path


def main(trainer: str = "") -> int:
    """Explain who caches, and succeed: the training that follows in a script of commands finds nothing missing."""
    name = Path(sys.argv[0]).name
    trainer = trainer or f"{name.partition('_cache_')[0]}_train_network.py"
    print(
        f"{name}: nothing to do here. {trainer} caches latents and captions itself before its first step; with "
        "cache_latents_to_disk and cache_text_encoder_outputs_to_disk, which --dit turns on, later runs use them too."
    )
    return 0

"""What datasets of clips need to know of a family."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ClipFacts:
    """The clips that a family is trained on; an image is a clip of one frame."""

    fps: float
    """Frames per second that the model was trained with: clips with more are thinned out to it."""
    frame_step: int = 4
    """Clips have a multiple of this number of frames, plus one."""
    shortest: int = 1
    """Frames of the shortest sample: shorter clips, and if it is more than 1 images, are skipped."""
    begin_with_image: bool = False
    """Whether the model makes clips from a start image alone: samples without one begin with a grey image."""
    from_image: Mapping[str, bool] = field(default_factory=dict)
    """Variant of the base model -> whether it makes clips from a start image, without which it makes none, or from text
    alone, where a start image has no effect."""
    controlled: frozenset[str] = frozenset()
    """Variants of the base model that follow a control clip; the others read none."""
    bucket_steps: int = 16
    """Sides of buckets are multiples of this unless bucket_reso_steps is set."""

    def fitting(self, frames: int) -> int:
        """Return the largest number of frames that a clip of `frames`, at least 1, can be cut to."""
        return (frames - 1) // self.frame_step * self.frame_step + 1


def latent_frames(frames: int) -> int:
    """Return the latent frames of a clip in a causal VAE: the first frame has one of its own, then four share one."""
    return 1 + (frames - 1) // 4

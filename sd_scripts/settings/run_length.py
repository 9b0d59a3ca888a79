"""How long a first training of a LoRA usually is: the page suggests it, the plan compares with it."""

FEW, USUAL = 500, 1500
"""Images, with repeats, that all steps of a run see together."""


def usual_factor(seen: float) -> int:
    """Return how many times as long a run must be to see about as many images as usual; 1: it is long enough."""
    return max(1, round(USUAL / max(seen, 1)))

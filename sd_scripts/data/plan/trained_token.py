"""The new token of textual inversion, looked for in the captions: a plan and a run report the same."""

from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.options.networks.embedding import EmbeddingOptions


def trained_token(options: EmbeddingOptions | None, card: FamilyCard) -> EmbeddingOptions | None:
    """Return the options of the new token, None if the run trains none."""
    return options if options and options.token_string and card.has("learns_embeddings") else None


def require_token_in_captions(options: EmbeddingOptions | None, plan: DataPlan, warn: Warn) -> None:
    """Raise ValueError if no caption of a training image contains the token, and warn if some do not.
    `options`: what trained_token returned."""
    if not options or options.templates:
        return
    token = str(options.token_string)
    items = [item for item in plan.items if not item.subset.is_reg]
    without = 0
    for item in items:
        rules = item.subset.captions
        text = " ".join(part for part in (rules.caption_prefix, item.caption, rules.caption_suffix) if part)
        without += token.lower() not in text.lower()
    if without == len(items):
        raise ValueError(
            f"token_string: no caption contains '{token}', so nothing would be trained; write it into the captions, "
            f'set caption_prefix = "{token}" to put it before each, or set use_object_template or use_style_template'
        )
    if without:
        warn(
            f"token_string: {without} of {len(items)} captions do not contain '{token}', so their images do not "
            "train it"
        )

"""Translates old option names of sd-scripts and kohya_ss on reading, so that no other code sees them."""

from collections.abc import Callable, Mapping
from typing import Any

from sd_scripts.formats.words import shell_words
from sd_scripts.options.spec import OptionGroup, Remark, optional, switch, truth
from sd_scripts.settings.compat.musubi import MUSUBI


class LegacyOptions(OptionGroup, title="Old names"):
    """Accepted for old files and commands; each is replaced by another option."""

    caption_extention: str | None = optional("Old spelling of caption_extension.")
    use_8bit_adam: bool = switch("Old form of optimizer_type = AdamW8bit.")
    use_lion_optimizer: bool = switch("Old form of optimizer_type = Lion.")
    skip_latents_validity_check: bool = switch("Old name of skip_cache_check.")
    torch_compile: bool = switch("Old form of compile, which compiled the whole model, slowly.")
    dynamo_backend: str | None = optional("Backend of torch_compile; now compile_backend.")
    split_mode: bool = switch("Old form of blocks_to_swap = 18.")
    double_blocks_to_swap: int | None = optional("Old form of blocks_to_swap: counts once.", within=(0, 1000))
    single_blocks_to_swap: int | None = optional("Old form of blocks_to_swap: counts half.", within=(0, 1000))


READ_AS_UNSET = "0 makes no sense here and is read as unset, so the default applies"

Values = dict[str, Any]
Translated = tuple[Values, list[Remark]]


def translate(raw: Mapping[str, Any]) -> Translated:
    """Replace old names and values in settings from a file or from flags."""
    values = dict(raw)
    remarks: list[Remark] = []
    for name, translator in TRANSLATORS.items():
        if name in values:
            new, said = translator(values.pop(name), values)
            values |= new
            remarks += [Remark(name, said)] if said else []
    return values, remarks


Translator = Callable[[Any, Values], tuple[Values, str]]
"""(old value, the other settings) -> (values to set, remark)."""


def _renamed(new_name: str) -> Translator:
    def rename(value: Any, others: Values) -> tuple[Values, str]:
        return ({} if new_name in others else {new_name: value}), f"is now called {new_name}"

    return rename


def _optimizer(chosen: str) -> Translator:
    def choose(value: Any, others: Values) -> tuple[Values, str]:
        if not truth(value):
            return {}, ""
        if others.get("optimizer_type"):
            return {}, f"has no effect with optimizer_type = {others['optimizer_type']}"
        return {"optimizer_type": chosen}, f"is now optimizer_type = {chosen}"

    return choose


def _torch_compile(value: Any, others: Values) -> tuple[Values, str]:
    return {}, "is not supported; set compile, which is faster and compiles sooner" if truth(value) else ""


def _dynamo_backend(value: Any, others: Values) -> tuple[Values, str]:
    if str(value).lower() in ("no", "") or truth(others.get("torch_compile")) is False:
        return {}, ""  # every file of kohya_ss says "no", and every file of sd-scripts has both
    return {}, "is not supported; set compile and compile_backend"


def _split_mode(value: Any, others: Values) -> tuple[Values, str]:
    return _swapped(18 if truth(value) else 0, others)


def _old_swap(value: Any, others: Values) -> tuple[Values, str]:
    """Translate double_blocks_to_swap, together with single_blocks_to_swap if both are set."""
    single = others.pop("single_blocks_to_swap", None)
    return _swapped(_number(value) + _number(single) // 2, others)


def _old_single_swap(value: Any, others: Values) -> tuple[Values, str]:
    return _swapped(_number(value) // 2, others)


def _swapped(blocks: int, others: Values) -> tuple[Values, str]:
    if not blocks:
        return {}, ""
    if others.get("blocks_to_swap"):
        return {}, f"has no effect, since blocks_to_swap = {others['blocks_to_swap']}"
    return {"blocks_to_swap": blocks}, f"is now blocks_to_swap = {blocks}"


def _number(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _epoch(value: Any, others: Values) -> tuple[Values, str]:
    if "max_train_epochs" in others or "max_train_steps" in others:
        return {}, ""  # kohya_ss also writes the steps that it computed from it
    return {"max_train_epochs": value}, "is now called max_train_epochs"


def _dropped(value: Any, others: Values) -> tuple[Values, str]:
    return {}, ""


def _max_token_length(value: Any, others: Values) -> tuple[Values, str]:
    """Round down to a multiple of 75, the chunk in which captions are read, as sd-scripts does."""
    tokens = _number(value)
    if tokens <= 0:
        return {"max_token_length": value}, ""
    chunks = min(max(tokens // 75, 1), 3)
    rounded = f"{tokens} is read as {75 * chunks}, since captions are read in chunks of 75 tokens"
    said = "" if tokens == 75 * chunks else rounded
    return {"max_token_length": None if chunks == 1 else 75 * chunks}, said


def _zero_is_unset(name: str) -> Translator:
    """0 makes no sense as a value; existing files use it for unset."""

    def read(value: Any, others: Values) -> tuple[Values, str]:
        if _is_zero(value):
            return {}, READ_AS_UNSET
        return {name: value}, ""

    return read


def _clip_skip(value: Any, others: Values) -> tuple[Values, str]:
    return {"clip_skip": None if str(value) == "1" else value}, ""  # 1 is the last layer, as ever


def _mixed_precision(value: Any, others: Values) -> tuple[Values, str]:
    if value == "fp8":
        return {"mixed_precision": "bf16"}, "fp8 is not supported; bf16 is used instead"
    return {"mixed_precision": value}, ""


def _resolution(value: Any, others: Values) -> tuple[Values, str]:
    return {"resolution": ",".join(map(str, value)) if isinstance(value, list) else value}, ""


def _words(name: str) -> Translator:
    """Split a list that is given as one text, quoted as in a shell."""

    def split(value: Any, others: Values) -> tuple[Values, str]:
        try:
            return {name: shell_words(value) if isinstance(value, str) else value}, ""
        except ValueError:  # an open quotation mark
            return {name: value.split()}, ""

    return split


def _is_zero(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) == 0
    except (TypeError, ValueError, OverflowError):
        return False


TRANSLATORS: dict[str, Translator] = {
    "caption_extention": _renamed("caption_extension"),
    "skip_latents_validity_check": _renamed("skip_cache_check"),
    "use_8bit_adam": _optimizer("AdamW8bit"),
    "use_lion_optimizer": _optimizer("Lion"),
    "dynamo_backend": _dynamo_backend,
    "torch_compile": _torch_compile,
    "split_mode": _split_mode,
    "double_blocks_to_swap": _old_swap,
    "single_blocks_to_swap": _old_single_swap,
    "epoch": _epoch,
    "noise_offset_type": _dropped,  # kohya_ss has already removed the noise options that it does not select
    "sdpa": _dropped,  # always on
    "max_token_length": _max_token_length,
    "clip_skip": _clip_skip,
    "mixed_precision": _mixed_precision,
    "resolution": _resolution,
    **{n: _zero_is_unset(n) for n in ("huber_c", "huber_scale", "t5xxl_max_token_length", "discrete_flow_shift")},
    **{name: _words(name) for name in ("optimizer_args", "lr_scheduler_args", "network_args")},
    **MUSUBI,
}
"""The order matters: dynamo_backend reads torch_compile before that is removed."""

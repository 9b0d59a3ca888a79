"""Loading steps shared by the families: find a model, check that tensors fit a module, fill it."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import init_empty_weights
from diffusers import DiffusionPipeline
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from sd_scripts.families.model_file import MODEL
from sd_scripts.formats.documents import read_json
from sd_scripts.library.state_dicts import Shapes, State

Made = TypeVar("Made")
OPTIONAL_KEYS = re.compile(r"(position_ids|attn_mask|logit_scale)$")
"""Keys that some programs write and loading ignores."""


def download(name: str) -> Path:
    """Return the model's folder in the Hugging Face cache, downloading what is missing."""
    try:
        return Path(DiffusionPipeline.download(name))
    except (OSError, ValueError):
        raise ValueError(
            f"{MODEL}: '{name}' is not a local file or folder, is not in the Hugging Face cache, and could not be "
            "downloaded; check the name and the network connection, and set huggingface_token if the model is gated"
        ) from None


def files_in(folder: Path, option: str) -> tuple[Path, ...]:
    """Return a component's weight files: one file, or all that an index names. Full precision is preferred."""
    for variant in ("", ".bf16", ".fp16"):
        for index in sorted(folder.glob(f"*model.safetensors.index{variant}.json")):
            return tuple(folder / name for name in _shards(index, option))
        for file in sorted(folder.glob(f"*model{variant}.safetensors")):
            return (file,)
    raise ValueError(f"{option}: the folder '{folder}' contains no weights, such as model.safetensors")


def _shards(index: Path, option: str) -> list[str]:
    """Return the file names that a shard index lists."""
    try:
        shards = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{option}: '{index}' is damaged; download it again") from None
    if outside := [name for name in shards if Path(name).name != name]:
        raise ValueError(f"{option}: '{index}' names {outside[0]!r}, which is outside this folder; download it again")
    return shards


def require_matching_shapes(
    shapes: Shapes, expected: Mapping[str, Tensor], option: str, path: Path, title: str, parts: Iterable[str] = ("",)
) -> None:
    """Raise ValueError unless every expected key exists in its shape, with no unknown keys below `parts`."""
    missing = [key for key in expected if key not in shapes and not OPTIONAL_KEYS.search(key)]
    if missing:
        raise ValueError(f"{option}: '{path}' is incomplete; missing: {some(missing)}")
    extra = [k for k in shapes if k.startswith(tuple(parts)) and k not in expected and not OPTIONAL_KEYS.search(k)]
    if extra:
        raise ValueError(f"{option}: '{path}' is not a plain {title}; unknown keys: {some(extra)}")
    other = [key for key in expected if key in shapes and _plain(shapes[key]) != _plain(expected[key].shape)]
    if other:
        raise ValueError(f"{option}: '{path}' has tensors of the wrong shape: {some(other)}")


def make_empty(make: Callable[[], Made], option: str, path: Path) -> Made:
    """Return what `make` builds, on the meta device, from the shapes in a file's header. Raises ValueError, one
    sentence that names `option`, if the shapes fit no model: such shapes fail anywhere within the libraries."""
    try:
        with init_empty_weights(), no_init_weights():  # drawing for tensors without storage takes a second
            return make()
    except KeyError as error:
        raise ValueError(f"{option}: '{path}' is incomplete; missing: '{error.args[0]}'") from None
    except ValueError as error:
        raise ValueError(f"{option}: '{path}' is incomplete: {(str(error).splitlines() or [''])[0]}") from None
    except (IndexError, ArithmeticError, TypeError, RuntimeError, AssertionError, AttributeError, MemoryError):
        raise ValueError(f"{option}: '{path}' has tensors of inconsistent shapes; download or copy it again") from None


def fill(
    module: nn.Module,
    state: State,
    dtype: torch.dtype,
    keep: Callable[[str, Tensor], bool] | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Assign tensors to `module`, each converted and moved in place of the one in `state`: no model is in memory twice.

    A tensor for which `keep(name, tensor)` is true keeps its dtype.
    """
    wanted = module.state_dict()
    for name in list(state):
        tensor = state.pop(name)
        tensor = tensor.to(device, None if keep and keep(name, tensor) else dtype)
        if name in wanted and tensor.numel() == wanted[name].numel():
            tensor = tensor.reshape(wanted[name].shape)  # a 1x1 convolution may be stored as a matrix
        state[name] = tensor
    module.load_state_dict(state, assign=True)


def shapes_of(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in state.items()}


def some(keys: Iterable[str]) -> str:
    """List the first three keys: `'a', 'b', 'c' and 7 more`"""
    names = [f"'{key}'" for key in keys]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _plain(shape: Iterable[int]) -> list[int]:
    """A shape without ones: a 1x1 convolution may be stored as a matrix."""
    return [size for size in shape if size != 1]

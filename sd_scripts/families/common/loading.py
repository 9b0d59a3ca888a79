"""Steps of opening a component: download it, find its files, make it empty, check that the tensors fit."""

import contextlib
import functools
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from sd_scripts.families.common.components import Keep, WeightSource
from sd_scripts.families.common.layouts import Layout
from sd_scripts.formats import words
from sd_scripts.formats.documents import read_json
from sd_scripts.library.files.lean_diffusers import ModelMixin
from sd_scripts.library.files.model_reader import read_empty, read_weights
from sd_scripts.library.files.state_dicts import Shapes, State
from sd_scripts.options.model import MODEL

Made = TypeVar("Made")
OPTIONAL_KEYS = re.compile(r"(position_ids|attn_mask|logit_scale)$")
"""Keys that some programs write and loading ignores."""


def download(name: str, received: Callable[[int, int], None] | None = None) -> Path:
    """Return the model's folder in the Hugging Face cache, downloading missing files. `received` is called with the
    bytes that are here and those of all files known so far, in the threads that download; what it raises ends the
    download."""
    from diffusers import DiffusionPipeline  # takes a second to import

    try:
        with _download_progress(received) if received else contextlib.nullcontext():
            return Path(DiffusionPipeline.download(name))
    except (OSError, ValueError):
        raise ValueError(
            f"{MODEL}: '{name}' is not a local file or folder, is not in the Hugging Face cache, and could not be "
            "downloaded; check the name and the network connection, and set huggingface_token if the model is gated"
        ) from None


@contextmanager
def _download_progress(received: Callable[[int, int], None]) -> Iterator[None]:
    """Report the bytes that diffusers downloads in the block: it hands no progress bar on to huggingface_hub."""
    from diffusers.pipelines import pipeline_utils

    plain = pipeline_utils.snapshot_download
    pipeline_utils.snapshot_download = functools.partial(plain, tqdm_class=progress_bar(received))
    try:
        yield
    finally:
        pipeline_utils.snapshot_download = plain


def progress_bar(received: Callable[[int, int], None]) -> Any:
    """Return the class of a progress bar for huggingface_hub's snapshot_download that calls `received`, as `download`
    does, and shows nothing."""
    from huggingface_hub.utils import tqdm

    class Progress(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == "huggingface_hub.snapshot_download"  # others count transfers and files
            self._bytes = 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._bytes += int(n or 0)
            if self._counts:
                received(self._bytes, int(self.total or 0))

    return Progress


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
    shapes: Shapes, expected: Mapping[str, Tensor], option: str, path: Path | str, kind: str, prefix: str = ""
) -> None:
    """Raise ValueError unless there are exactly the expected keys, in their shapes; it names keys with `prefix`."""
    if missing := [prefix + key for key in expected if key not in shapes and not OPTIONAL_KEYS.search(key)]:
        raise ValueError(f"{option}: '{path}' is incomplete; missing: {some(missing)}")
    if extra := [prefix + key for key in shapes if key not in expected and not OPTIONAL_KEYS.search(key)]:
        raise ValueError(f"{option}: '{path}' is not a plain {kind}; unknown keys: {some(extra)}")
    other = [key for key in expected if key in shapes and _plain(shapes[key]) != _plain(expected[key].shape)]
    if other:
        raise ValueError(f"{option}: '{path}' has tensors of the wrong shape: {some(prefix + key for key in other)}")


def make_empty(make: Callable[[], Made], option: str, path: Path, prefix: str) -> Made:
    """Return the module of `make`, on the meta device, from the shapes in a file's header. Raises ValueError, one
    sentence that names `option`, if the shapes fit no model: such shapes fail anywhere within the libraries. A missing
    key is named with `prefix`."""
    try:
        with empty_weights():
            return make()
    except KeyError as error:
        raise ValueError(f"{option}: '{path}' is incomplete; missing: '{prefix}{error.args[0]}'") from None
    except ValueError as error:
        raise ValueError(f"{option}: '{path}' is incomplete: {(str(error).splitlines() or [''])[0]}") from None
    except (IndexError, ArithmeticError, TypeError, RuntimeError, AssertionError, AttributeError, MemoryError):
        raise ValueError(f"{option}: '{path}' has tensors of inconsistent shapes; download or copy it again") from None


DRAWN = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.GroupNorm, nn.LayerNorm)


@contextmanager
def empty_weights() -> Iterator[None]:
    """Put the weights of new modules on the meta device, and draw no initial values: for tensors without storage that
    takes a second."""
    drawing = [(kind, "reset_parameters") for kind in DRAWN]
    if models := sys.modules.get("transformers.modeling_utils"):
        drawing.append((models.PreTrainedModel, "initialize_weights"))
    before = [getattr(kind, method) for kind, method in drawing]
    try:
        for kind, method in drawing:
            setattr(kind, method, lambda self: None)
        with init_empty_weights():
            yield
    finally:
        for (kind, method), draw in zip(drawing, before, strict=True):
            setattr(kind, method, draw)


def shapes_of(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in state.items()}


FORMER = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""Names in the VAE's attention before diffusers 0.13."""


def open_library(layout: Layout, place: Path | str, option: str, kind: str) -> WeightSource:
    """Open a component's folder with its config.json, or a Hugging Face id, as diffusers or transformers do."""
    library = pkgutil.resolve_name(str(layout.library))
    local = isinstance(place, Path)
    if isinstance(place, Path) and not (place / "config.json").is_file():
        raise ValueError(f"{option}: '{place}' is incomplete; missing: 'config.json'")
    diffusers = issubclass(library, ModelMixin)
    with _in_one_sentence(option, place):
        config = (library.load_config if diffusers else library.config_class.from_pretrained)(
            place, local_files_only=local
        )

    def make() -> nn.Module:
        with empty_weights():
            return library.from_config(config) if diffusers else library(config)

    with _in_one_sentence(option, place):
        empty = make()
    names = empty.state_dict()
    files = files_in(place, option) if isinstance(place, Path) and any(place.glob("*.safetensors")) else ()

    def tensors(read: Callable[[Path, str], State]) -> State:
        state = {_name_now(key, names): tensor for file in files for key, tensor in read(file, option).items()}
        return {name: tensor for name, tensor in state.items() if name in names}

    def read_tensors(dtype: torch.dtype, keep: Keep | None) -> State:
        if files:
            return tensors(read_weights)
        with _in_one_sentence(option, place):  # downloaded, or a pickle, which is left to the library
            return library.from_pretrained(place, local_files_only=local).state_dict()

    if files:
        require_matching_shapes(shapes_of(tensors(read_empty)), names, option, place, kind)
    return WeightSource(empty=empty, make=make, path=place, read=read_tensors, finish=layout.finish)


@contextmanager
def _in_one_sentence(option: str, place: Path | str) -> Iterator[None]:
    """Turn the library's errors into ValueErrors of one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        what = "is incomplete" if isinstance(place, Path) else "cannot be loaded"
        raise ValueError(f"{option}: '{place}' {what}: {str(error).strip().splitlines()[0].rstrip('.')}") from None


def _name_now(key: str, names: State) -> str:
    """transformers 4 wrote `text_model.` before the names of CLIP's text encoder too."""
    key = re.sub(r"(attentions\.0\.)(query|key|value|proj_attn)\b", lambda found: found[1] + FORMER[found[2]], key)
    return key if key in names else key.removeprefix("text_model.")


def some(keys: Iterable[str]) -> str:
    """List the first three keys: `'a', 'b', 'c' and 7 more`"""
    return words.some([f"'{key}'" for key in keys])


def _plain(shape: Iterable[int]) -> list[int]:
    """A shape without ones: a 1x1 convolution may be stored as a matrix."""
    return [size for size in shape if size != 1]

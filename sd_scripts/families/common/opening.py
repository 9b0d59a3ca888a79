"""Open a base model: find the files of its components and check them by name and header. No weights are read yet."""

import functools
from collections.abc import Callable, Collection, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.cards.family_card import DENOISER, ComponentCard, FamilyCard
from sd_scripts.families.cards.model_file import describe, index_of, is_hub_id, recognise, shards_of, with_article
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.families.common.components import SCALE, WeightSource
from sd_scripts.families.common.layouts import Layout, apply_scales
from sd_scripts.families.common.loading import (
    files_in,
    make_empty,
    open_library,
    require_matching_shapes,
    shapes_of,
    some,
)
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.files.model_reader import read_empty, read_weights
from sd_scripts.library.files.state_dicts import State
from sd_scripts.library.text.tokenizers import Tokenizers, find_tokenizer, tokenizer_folders
from sd_scripts.options.generating.sampling import SAMPLE_MODEL, SampleOptions
from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.options.spec import WrongValue
from sd_scripts.settings.settings import Settings


def open_sources(
    card: FamilyCard,
    layouts: Mapping[str, Layout],
    settings: Settings,
    find_model: Callable[[], Path | str],
    only: Collection[str] = (),
    *,
    online: bool,
) -> tuple[dict[str, WeightSource], list[str]]:
    """Return the complete components of a base model by name, and the problems of the others.

    `find_model` returns the base model's file or folder, or its Hugging Face id, without opening it. `only`:
    names of the components to open; empty for all. Without `online` nothing is downloaded.
    """
    sources: dict[str, WeightSource] = {}
    problems: list[str] = []
    wrong_model = False  # which does not concern the other components
    for component in card.files.components:
        if only and component.name not in only:
            continue
        try:
            file = component.option != MODEL and settings.value(component.option)
            if wrong_model and not file:
                continue
            opener = _Opener(component, layouts[component.name], card, settings[ModelOptions])
            if file:
                source = opener.open_given(file, online=online)
            else:
                model = find_model()
                inner = isinstance(model, Path) and component.folder and (model / component.folder).is_dir()
                if component.optional and not inner:
                    continue
                source = opener.open_within(model, alone=len(only) == 1) if isinstance(model, Path) else None
            if source:
                opener.require_own_inputs(source)
                sources[component.name] = source
        except WrongValue:
            continue  # what its option names was found to be wrong
        except ValueError as error:
            problems.append(str(error))
            wrong_model |= component.option == MODEL
    return sources, problems


def open_sample_model(
    card: FamilyCard, layouts: Mapping[str, Layout], model: ModelOptions, samples: SampleOptions, trained: WeightSource
) -> WeightSource | None:
    """Return the weights of sample_model, which are to take the place of the trained model's; None without one. They
    are loaded as those are, into main memory. Raises ValueError, one sentence, if they do not fit there."""
    file = samples.sample_model if card.has(SAMPLE_MODEL) else None
    if not file:
        return None
    assert card.files.denoiser
    component = replace(card.files.denoiser, option=SAMPLE_MODEL, title=card.files.base_model)
    opener = _Opener(component, layouts[DENOISER], card, model)
    source = opener.open_given(file, online=False)
    assert source, "the denoiser is not opened by a library"
    opener.require_own_inputs(source)
    if shapes_of(source.empty.state_dict()) != shapes_of(trained.empty.state_dict()):
        raise ValueError(
            f"{SAMPLE_MODEL}: '{source.path}' differs from the trained model in the sizes of its layers; choose a "
            "model of the same size"
        )
    return replace(trained, empty=source.empty, make=source.make, path=source.path, read=source.read, device="cpu")


def load_tokenizers(
    card: FamilyCard,
    layouts: Mapping[str, Layout],
    rows: Mapping[str, int],
    source: Path,
    tokenizer_cache_dir: str | None,
    *,
    late: bool = False,
) -> Sequence[Any]:
    """Return the tokenizers for a model at `source`: next to it, in tokenizer_cache_dir or in this package.

    `rows`: the number of embeddings of each text encoder that has a tokenizer. A tokenizer of a different model is
    skipped. `late`: they are created when the first one is used, if this package's would do.
    """
    kinds = [
        (kind, component)
        for component in card.files.components
        if component.name in rows and (kind := layouts[component.name].tokenizer)
    ]

    def make() -> list[Any]:
        return [
            find_tokenizer(kind, component.tokenizer_folder, source, tokenizer_cache_dir, rows[component.name])
            for kind, component in kinds
        ]

    can_wait = late and all(kind.shipped and kind.fits(kind.size, rows[component.name]) for kind, component in kinds)
    if not can_wait:
        return make()
    replaced = any(tokenizer_folders(kind, c.tokenizer_folder, source, tokenizer_cache_dir) for kind, c in kinds)
    return Tokenizers(make, shipped=not replaced)


@dataclass(frozen=True, kw_only=True)
class _Outline:
    """A component without weights, made from the names, shapes and dtypes in its file. It may not be changed."""

    module: torch.nn.Module
    names: KeysView[str]
    """Names of the module's tensors."""
    file: State
    """The file's tensors, unified, on the meta device."""
    expected: Mapping[str, Tensor]
    """The tensors of a complete file."""


@functools.lru_cache(maxsize=16)  # checked before the start and opened by the run: made once for both
def _outline(layout: Layout, contents: tuple[tuple[str, torch.Size, torch.dtype], ...]) -> _Outline:
    empty = {key: torch.empty(shape, dtype=dtype, device="meta") for key, shape, dtype in contents}
    file = layout.unify(apply_scales(empty, torch.float32))
    module = (layout.outline or layout.make)(shapes_of(file))
    state = module.state_dict()
    return _Outline(module=module, names=state.keys(), file=file, expected=layout.write(state))


class _Opener:
    """One component, opened from one of its possible locations. Its methods raise ValueError, one sentence that names
    the option."""

    def __init__(self, component: ComponentCard, layout: Layout, card: FamilyCard, model: ModelOptions):
        self.component, self.layout, self.card = component, layout, card
        self.mmap = not model.disable_mmap_load_safetensors

    def open_given(self, name: str, *, online: bool) -> WeightSource | None:
        """Open what the component's own option names: a file, its folder, the folder of a complete model, or, if the
        library supports these and `online`, a Hugging Face id."""
        option = self.component.option
        path = Path(name)
        if not path.exists() and self.layout.library and is_hub_id(name):
            return open_library(self.layout, name, option, self.component.kind) if online else None
        if not path.exists():
            raise ValueError(f"{option}: file or folder not found: '{path}'")
        if path.is_file():
            return self._open_files(path, shards_of(path), option)
        inner = path / self.component.folder
        return self._open_folder(inner if inner.is_dir() else path, option)

    def open_within(self, model: Path, *, alone: bool) -> WeightSource:
        """Open the component in the base model's file or folder; `alone`, this may be its own."""
        component, card = self.component, self.card
        if model.is_file():
            if component.option != MODEL and component.prefix_in(read_empty(model, MODEL)) is None:
                raise ValueError(component.absent_from(model))
            return self._open_files(model, shards_of(model), MODEL)
        folder = model / component.folder
        whole = index_of(model) is not None
        several = sum(each.option == MODEL for each in card.files.components) > 1
        if (whole or (several and not alone)) and not card.trains((description := describe(model)).family):
            problem = description.problem or f"'{model}' is not {card.title} but {description.is_a}"
            raise ValueError(f"{MODEL}: {problem}")
        if whole or folder.is_dir():
            return self._open_folder(folder, MODEL)
        if alone or component.option == MODEL:
            return self._open_folder(model, MODEL)
        raise ValueError(component.absent_from(model))

    def require_own_inputs(self, source: WeightSource) -> None:
        """Raise ValueError for a model that reads more than the family's own, such as an inpainting model: training and
        sampling would fail at its first layer."""
        first = self.component.first_layer
        if first and (variant := first.other_variant(shapes_of(source.empty.state_dict()))):
            option = self.component.option
            suitable = self.card.files.base_file if option == MODEL else self.component.title
            raise ValueError(
                f"{option}: '{source.path}' is {with_article(variant)}, which cannot be used here; choose {suitable}"
            )

    def _open_folder(self, folder: Path, option: str) -> WeightSource:
        if self.layout.library:
            return open_library(self.layout, folder, option, self.component.kind)
        return self._open_files(folder, files_in(folder, option), option)

    def _open_files(self, path: Path, files: tuple[Path, ...], option: str) -> WeightSource:
        """Open one file, or shards. Raises ValueError unless they contain a complete component."""
        component, layout = self.component, self.layout
        empty = {key: tensor for file in files for key, tensor in read_empty(file, option).items()}
        prefix = component.prefix_in(empty)
        if prefix is None:
            suitable = self.card.files.base_model if component.option == MODEL else component.title
            raise ValueError(f"{option}: '{path}' is not {suitable} but {self._what_else(empty)}")
        if component.name == DENOISER:
            family, variant = _recognised(empty)
            if family and not self.card.trains(family):
                raise ValueError(f"{option}: '{path}' is not {self.card.files.base_model} but {self._what_else(empty)}")
            if variant and not family:
                suitable = self.card.files.base_file
                raise ValueError(
                    f"{option}: '{path}' is {with_article(variant)}, which cannot be trained here; choose {suitable}"
                )

        contents = tuple((key, tensor.shape, tensor.dtype) for key, tensor in _below(prefix, empty).items())

        outline = make_empty(lambda: _outline(layout, contents), option, path, prefix)
        file, expected, names = outline.file, outline.expected, outline.names
        if packed := [key for key, tensor in file.items() if key in expected and not tensor.is_floating_point()]:
            raise ValueError(
                f"{option}: '{path}' contains packed integers instead of weights, such as {some(packed[:1])}; "
                "choose the bf16, fp16 or fp8 file"
            )
        require_matching_shapes(shapes_of(file), expected, option, path, component.kind, prefix)

        def read(dtype: torch.dtype, keep: Callable[[str, Tensor], bool] | None = None) -> State:
            state: State = {}
            for each in files:
                state |= _below(prefix, read_weights(each, option, mmap=self.mmap, prefix=prefix))
            state = layout.read(layout.unify(apply_scales(state, dtype, keep)), names)
            return {name: state[name] for name in state if name in names or name.endswith(SCALE)}

        def make() -> torch.nn.Module:
            return make_empty(lambda: layout.make(shapes_of(file)), option, path, prefix)

        return WeightSource(empty=outline.module, make=make, path=path, read=read, finish=layout.finish)

    def _what_else(self, file: State) -> str:
        """Describe a file that does not contain the component, and what to do with it."""
        family, variant = _recognised(file)
        if variant.endswith("LoRA"):
            return f"{with_article(variant)}; to continue training a LoRA, set network_weights"
        for other in self.card.files.components:
            if other is not self.component and other.prefix_in(file) in other.prefixes[:-1]:
                return f"{with_article(variant) or other.kind}; set {other.option} to it instead"
        if self.component.option == MODEL and family in names() - {self.card.name}:
            other_card = card_of(str(family))
            return f"{with_article(variant)}; train {other_card.title} with {other_card.scripts['lora']}"
        return with_article(variant) or (f"something with keys such as {some(file)}" if file else "empty")


def _recognised(file: State) -> tuple[str | None, str]:
    return recognise(Header(metadata={}, shapes=shapes_of(file), dtypes={}))


def _below(prefix: str, file: State) -> State:
    """Return the tensors whose keys begin with `prefix`, without it."""
    return {key.removeprefix(prefix): tensor for key, tensor in file.items() if key.startswith(prefix)}

"""The interface between the trainer and a model family: each family is a folder that fills in one Family."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.model_file import locate
from sd_scripts.families.cards.registry import module_of
from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.components import Components as Components
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.loading import download
from sd_scripts.families.common.objective import Draw, HighNoise, Loss, ObjectiveOptions, flow_validation_timesteps
from sd_scripts.families.common.objective import StepInputs as StepInputs
from sd_scripts.families.common.objective import Tokens as Tokens
from sd_scripts.families.common.opening import load_tokenizers, open_sample_model, open_sources
from sd_scripts.families.common.placing import BlockLists, Placement, blocks_to_swap, checkpoint_gradients
from sd_scripts.families.common.problems import Expected, network_problems, width_problems
from sd_scripts.families.common.quantizing import quantize_while_loading
from sd_scripts.families.common.sampling import Sample, SampleBatch
from sd_scripts.formats.atomic_files import atomic_file, atomic_folder
from sd_scripts.formats.disk import saving
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.diffusion.flow_timesteps import draw_sigmas
from sd_scripts.library.files.safetensors_io import on_cpu, save_model
from sd_scripts.networks.targets import LoraBlocks, LoraTarget
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.dataset import CacheOptions, CaptionOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.settings.settings import Settings

if TYPE_CHECKING:
    from sd_scripts.data.batch import Batch
    from sd_scripts.data.caches.caching import LatentLayout
    from sd_scripts.data.plan.dataset import Item


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Trained weights to be saved: state dicts under the modules' own names, on any device."""

    denoiser: Mapping[str, Tensor]
    """Complete, frozen tensors included."""
    text_encoders: Sequence[Mapping[str, Tensor] | None] = ()
    """One for each text encoder, None if it was not trained; empty if none was."""


@dataclass(frozen=True, kw_only=True)
class FileIdentity:
    """Metadata of saved files about the model."""

    base_model_version: str
    """ss_base_model_version of saved LoRAs."""
    architecture: Callable[[Components], str]
    """modelspec.architecture, without "/lora"."""
    implementation: str
    """modelspec.implementation."""
    prediction_type: Callable[[Settings], str | None] = lambda settings: None
    """modelspec.prediction_type: epsilon, v, or None."""
    lora_options: Sequence[str] = ()
    """Options that LoRA files of this family record as ss_ entries in addition to the common ones."""
    lora_metadata: Callable[[Components], dict[str, str]] = lambda components: {}
    """Further entries of these files."""

    def lora_entries(self, values: Mapping[str, Any], components: Components) -> dict[str, str]:
        """Return the metadata of this family's LoRA files in addition to the common entries, for the values of all
        options."""
        return {f"ss_{name}": str(values[name]) for name in self.lora_options} | self.lora_metadata(components)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options that decide how captions are encoded."""

    model: ModelOptions
    weighted_captions: bool
    compiling: CompileOptions

    @classmethod
    def of(cls, settings: Settings) -> TextOptions:
        return cls(
            model=settings[ModelOptions],
            weighted_captions=settings[CaptionOptions].weighted_captions,
            compiling=settings[CompileOptions],
        )


@dataclass(frozen=True, kw_only=True)
class TextEncoding:
    """From captions to the denoiser's text inputs."""

    tokenize: Callable[[Components, Sequence[Caption], TextOptions], Tokens]
    """Captions -> token ids and weights of each encoder, on the CPU."""
    encode: Callable[[Components, Tokens], dict[str, Tensor]]
    """Tokens -> the text cache's tensors, batch first, for the encoders whose tokens are present. Differentiable for
    trained encoders."""
    prompt_captions: Callable[[SamplePrompt], list[Caption]]
    """Text inputs of a sample: the prompt, preceded by the negative prompt if guidance uses one."""
    adapted: Callable[[Settings], tuple[bool, ...]] = lambda settings: (True,)
    """Which text encoders a LoRA adapts when text encoders are trained."""
    cache_suffix: str
    """Suffix of text cache files: "te_outputs" in `name_te_outputs.safetensors`."""
    cache_key: Callable[[Components, TextOptions], tuple[object, ...]]
    """Everything besides the encoders that changes their outputs: a cache with a different key is rebuilt."""
    limit: Callable[[Components, TextOptions], TextLimit] | None = None
    """The length at which captions are cut, made without loading a tokenizer; None: they are not."""
    reads: Callable[[int], tuple[int, ...]] = lambda limit: (limit,)
    """The tokens of the limit -> how many tokens of a caption alone each text encoder reads."""
    embeddings: tuple[str, ...] = ()
    """For each text encoder the key of its embeddings in embedding files; empty: no new token can be trained."""
    sees_controls: bool = False
    """Whether captions come with the control images of their sample."""
    cache_fits: Callable[[Components, Mapping[str, Tensor]], bool] | None = None
    """Whether a cache file of unknown origin can be used; None: any."""
    trim: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict
    """Outputs of one caption -> the same without padding, as caches store them."""
    pad: Callable[[Mapping[str, Tensor], CompileOptions], dict[str, Tensor]] = lambda text, options: dict(text)
    """Outputs of a batch, padded to its longest caption -> text inputs of a step."""


def blocks_of(*classes: type[nn.Module]) -> Callable[[nn.Module], list[nn.Module]]:
    """Return a function that finds the modules of these classes, in model order."""
    return lambda module: [block for block in module.modules() if isinstance(block, classes)]


def blocks_named(*names: str) -> Callable[[nn.Module], list[nn.Module]]:
    """Return the same for classes of these names, which are slow to import."""
    return lambda module: [block for block in module.modules() if type(block).__name__ in names]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The repeated blocks of the components, which are compiled, sharded and updated one by one."""

    title: str
    """The denoiser's name in the compile log."""
    denoiser: Callable[[nn.Module], list[list[nn.Module]]]
    """Return the blocks of the denoiser that share graphs, as lists in model order."""
    graph_kinds: Callable[[nn.Module], dict[str, int]]
    """How many graphs each class of block needs at one image size."""
    index: Callable[[str], int] | None = None
    """Name of a parameter of the denoiser -> its place in block_lr; None: this family has no block_lr."""
    text_encoder: Callable[[nn.Module], list[nn.Module]] = lambda module: []
    """Return the layers of a text encoder; none: it is not compiled."""
    vae: Callable[[nn.Module], list[nn.Module]] = lambda module: []
    """Return the blocks of the VAE's encoder; none: it is not compiled."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Writes a complete model."""

    tensors: Callable[[Components, ModelWeights], Mapping[str, Tensor]]
    """Return the tensors of a single file, by key."""
    folder: Callable[[Components, ModelWeights, Path, torch.dtype | None], None] | None = None
    """Write a diffusers folder into an empty folder; None: this family writes single files only."""
    writes_all: bool = True
    """Whether files contain the VAE and all text encoders too."""
    form: Callable[[Components, str | None], str] = lambda components, save_model_as: "safetensors"
    """save_model_as (None: unset) -> the format that `write` writes: safetensors or ckpt, which is also the file
    extension, or diffusers, a folder."""

    def write(
        self,
        components: Components,
        weights: ModelWeights,
        path: Path,
        form: str,
        dtype: torch.dtype | None,
        metadata: dict[str, str],
    ) -> None:
        """Write a complete model atomically, with all tensors in `dtype` (None: unchanged). A .ckpt and a folder have
        no metadata. Raises OSError in one sentence on failure, and keeps the earlier file."""
        if form == "diffusers" and self.folder:
            with saving(path), atomic_folder(path, "model_index.json") as folder:
                self.folder(components, weights, folder, dtype)
        elif form == "ckpt":
            tensors = self.tensors(components, weights)
            with saving(path), atomic_file(path) as part:  # clone: saving a view would write its whole storage
                torch.save({"state_dict": {key: on_cpu(each, dtype).clone() for key, each in tensors.items()}}, part)
        else:
            save_model(path, self.tensors(components, weights), metadata, dtype)


DENOISER_ALONE = Saving(tensors=lambda components, weights: weights.denoiser, writes_all=False)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Inputs that are made from a sample's pixels in addition to its latents and cached with them, such as the latents
    of a clip's first frame. Steps find them in Batch.conditioning under their names."""

    names: Callable[[Components], Sequence[str]]
    """The names of the tensors that the opened model needs; empty: none."""
    encode: Callable[[Components, Tensor], dict[str, Tensor]]
    """Pixels (B, 3, *S) in -1..1 as encode_images takes them -> a tensor of each name, batch first, called where there
    are names. For a sample that is flipped it gets flipped pixels."""
    components: Sequence[str] = ()
    """Components that `encode` calls in addition to the VAE."""
    shortest: int = 1
    """Frames of the shortest sample from which the model does not already know all that it has to predict."""
    control_clips: Callable[[Components], bool] | None = None
    """Whether the opened model reads a control clip for each sample, in addition to these inputs; None: what control
    images are for, the card states."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family for the trainer."""

    card: FamilyCard
    identity: FileIdentity
    latents: LatentLayout
    text: TextEncoding
    layouts: Mapping[str, Layout]
    """How each component of the card is made and filled, by name."""
    prepare: Callable[[Components, Settings], None] = lambda components, settings: None
    """Called with the opened components before they are loaded: adds extras, and changes how they are loaded."""
    expected: Callable[[Mapping[str, WeightSource]], Expected] = lambda sources: {}
    """Opened components -> sizes of the others that the transformer expects. Raises ValueError, one sentence that names
    the option, if it is of a different model."""
    problems: Callable[[Mapping[str, WeightSource], Settings], list[str]] = lambda sources, settings: []
    """Return problems of components that do not fit together, and of options that the denoiser limits, besides those
    that all transformers may have."""
    encode_images: Callable[[Components, Tensor], Tensor]
    """Pixels in -1..1 -> latents as the cache stores them. (B, 3, H, W) -> (B, C, h, w); for a family whose card has
    `clips`, always (B, 3, F, H, W) -> (B, C, f, h, w), where an image has F = 1."""
    conditions: Conditions | None = None
    """Inputs made from a sample's pixels in addition to its latents; None: this family has none."""
    block_lists: BlockLists | None = None
    """The blocks of a denoiser that is a BlockTransformer; None: `place_denoiser` places it."""
    place_denoiser: Callable[[Components, Placement, torch.device], object] = lambda components, placement, device: (
        components.denoiser.to(device)
    )
    """Move the denoiser to the device, quantized and with swapped blocks as the options specify."""
    checkpoint_gradients: Callable[[nn.Module, TrainingOptions, NetworkOptions | None], None] = checkpoint_gradients
    """Enable gradient checkpointing of the denoiser."""
    conditioning: Callable[[Item, bool], dict[str, Tensor]] | None = None
    """Item, whether it is flipped -> inputs of step_inputs besides latents and text: Batch.conditioning of one sample,
    made in worker processes."""
    objective_group: type[OptionGroup] | None = None
    """The family's own options that `step_inputs` and `loss` read."""
    step_inputs: Callable[[Batch, Tensor, ObjectiveOptions, torch.Generator, Tensor | None], dict[str, Tensor]]
    """Batch, latents as cached but on the device, options, generator of this step, timesteps float32 (None: drawn)
    -> StepInputs.model."""
    draw_timesteps: Draw = draw_sigmas
    """How step_inputs of a family of flow matching draws timesteps."""
    validation_timesteps: Callable[[NoiseOptions], list[float]] = flow_validation_timesteps
    """Timesteps of the validation loss, in this family's own unit."""
    loss: Loss
    blocks: Blocks
    frozen: str = ""
    """Prefix of the names of the denoiser's weights that full training leaves unchanged; empty: all are trained."""
    lora: LoraTarget
    lora_text_encoders: tuple[LoraTarget, ...]
    lora_blocks: LoraBlocks = field(default_factory=LoraBlocks)
    sample: Sample
    """Components, prompt, text outputs of its captions, settings -> an image or a clip. Compiled blocks run compiled
    unless the caller disables it. It calls `offer_preview` after each step."""
    sample_batch: SampleBatch | None = None
    """As `sample`, for several prompts that differ in their seeds alone: with the capability `batches`. The text
    outputs belong to one of them, and previews show the first."""
    saving: Saving = DENOISER_ALONE

    def objective_options(self, settings: Settings) -> ObjectiveOptions:
        """Return the options that `step_inputs` and `loss` read."""
        return ObjectiveOptions(
            noise=settings[NoiseOptions],
            flow=settings.get(FlowOptions) or FlowOptions(),  # type: ignore[call-arg]  # mypy knows no defaults
            loss=settings[LossOptions],
            family=settings[self.objective_group] if self.objective_group else None,
        )

    def high_noise(self, options: ObjectiveOptions) -> HighNoise:
        """Return the draws of a family of flow matching for batches that have two sizes."""
        return HighNoise(options=options, tokens=self.card.plan.tokens, draw=self.draw_timesteps)

    def check(self, settings: Settings) -> list[str]:
        """Return problems of the model files that names and headers reveal; nothing is loaded."""
        try:
            model = locate(settings[ModelOptions].pretrained_model_name_or_path, self.card.files.base_file)
        except ValueError as error:
            return [str(error)]
        sources, problems = open_sources(self.card, self.layouts, settings, lambda: model, online=False)
        if DENOISER not in sources:
            return problems
        try:
            self.open_sample_model(settings[ModelOptions], settings[SampleOptions], sources[DENOISER])
        except ValueError as error:
            problems.append(str(error))
        return problems + self._problems(sources, settings)

    def _problems(self, sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
        """Return problems of components that do not fit together, and of options that the denoiser limits."""
        if self.block_lists is None:
            return self.problems(sources, settings)
        try:
            expected = self.expected(sources)
        except ValueError as error:
            return [str(error)]
        return [
            *width_problems(sources, self.card, expected),
            *self.problems(sources, settings),
            *self.block_lists.swap_problems(sources[DENOISER].empty, settings.get(MemoryOptions)),
            *network_problems(sources[DENOISER], self.lora, settings),
        ]

    def place(self, components: Components, placement: Placement, device: torch.device) -> None:
        """Move the denoiser to the device, quantized and with swapped blocks as the options specify. The weights of a
        second model, which takes its place, follow."""
        if self.block_lists is None:
            self.place_denoiser(components, placement, device)
            return
        self.block_lists.place(components, placement, device)
        if components.experts:
            components.experts.join(components, self.block_lists, placement)

    def open_sample_model(
        self, model: ModelOptions, samples: SampleOptions, denoiser: WeightSource
    ) -> WeightSource | None:
        """Return the weights of sample_model, which fit the opened denoiser; None without one. Raises ValueError, one
        sentence."""
        return open_sample_model(self.card, self.layouts, model, samples, denoiser)

    def open(
        self,
        settings: Settings,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        denoiser_dtype: torch.dtype | None = None,
        encoder_dtype: torch.dtype | None = None,
        only: Collection[str] = (),
    ) -> Components:
        """Check the base model's files and return its components, or `only` those of these names, none loaded yet.

        They are loaded frozen, in eval mode, in `dtype` and onto `device`. Trained modules can be loaded in a wider
        dtype, to keep the full precision of the file. Raises ValueError, one sentence that names the option.
        """
        options = settings[ModelOptions]

        @functools.cache
        def find_model() -> Path:
            model = locate(options.pretrained_model_name_or_path, self.card.files.base_file)
            return model if isinstance(model, Path) else download(model)

        sources, problems = open_sources(self.card, self.layouts, settings, find_model, only, online=True)
        if problems := problems or ([] if only else self._problems(sources, settings)):
            raise ValueError(problems[0])
        wide_vae = options.no_half_vae and self.card.has("own_vae")
        dtypes = {DENOISER: denoiser_dtype or dtype, VAE: torch.float32 if wide_vae else dtype}
        # a denoiser whose blocks are swapped may not fit on the device
        devices = {DENOISER: "cpu"} if blocks_to_swap(settings.get(MemoryOptions)) else {}
        for name, source in sources.items():
            sources[name] = replace(
                source, dtype=dtypes.get(name, encoder_dtype or dtype), device=devices.get(name, device)
            )
        if only:
            return Components.opened(sources, tokenizers=[], source="")
        encoders: dict[str, Any] = {n: each.empty for n, each in sources.items() if self.layouts[n].tokenizer}
        rows = {name: encoder.config.vocab_size for name, encoder in encoders.items()}
        cached = settings[CacheOptions].cache_text_encoder_outputs_to_disk
        tokenizers = load_tokenizers(
            self.card, self.layouts, rows, find_model(), options.tokenizer_cache_dir, late=cached
        )
        components = Components.opened(sources, tokenizers=tokenizers, source=find_model())
        self.prepare(components, settings)
        quantize_while_loading(components.sources, self.layouts, quantization_of(settings))
        return components


def family_of(name: str) -> Family:
    """Load a family with its model code."""
    return module_of(name, "family").FAMILY  # type: ignore[no-any-return]

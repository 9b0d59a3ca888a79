"""A model family for the page and the options, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.kohya import KohyaFamily
from sd_scripts.families.cards.memory_facts import MemoryFacts, image_tokens
from sd_scripts.families.cards.noise_levels import share_above
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.generating.prompt_lines import CONTROL_CLIP, CONTROLS, END, START, SamplePrompt
from sd_scripts.options.model import MODEL
from sd_scripts.options.networks.layer_rules import Rules, Warn
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import CAPABILITIES, Findings, OptionGroup, OptionValues

Groups = tuple[type[OptionGroup], ...]
Mark = tuple[str, "str | None", str]
"""(text that only such a file has, family or None if it cannot be trained, variant)."""
Check = Callable[[OptionValues], Findings]
"""A rule like those of `settings/checks/between.py`."""


DENOISER, VAE = "denoiser", "vae"


@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """The layer through which a component reads its input. A model with other input channels, such as an inpainting
    model, reads more than training and sampling give it."""

    keys: tuple[str, ...]
    """Names of its weight in every layout, without prefix."""
    channels: int
    """Input channels of the family's own models: the second axis of the weight."""
    also: tuple[int, ...] = ()
    """Input channels of other models that the family trains."""
    kind: str
    """Name of a model with unknown input channels, with the family's title."""
    variants: Mapping[int, str] = field(default_factory=dict)
    """Other input channels -> the known model that has them."""

    def other_variant(self, shapes: Mapping[str, Sequence[int]], prefix: str = "") -> str:
        """Return the name of a model with these shapes by key if its input channels differ; else, or if the layer is
        not among them, an empty text."""
        shape = next((shapes[prefix + key] for key in self.keys if prefix + key in shapes), ())
        if len(shape) < 2 or shape[1] in (self.channels, *self.also):  # a .ckpt file's header has no shapes
            return ""
        other = f"{self.kind}, with {shape[1]} instead of {self.channels} input channels"
        return self.variants.get(shape[1], other)


@dataclass(frozen=True, kw_only=True)
class ComponentCard:
    """A component of the base model: how its files are named and recognised."""

    name: str
    """denoiser, vae, text_encoder1, text_encoder2, ..."""
    kind: str
    """Name of a complete file of it: "T5 text encoder"."""
    prefixes: tuple[str, ...]
    """Prefixes of its keys: in files of its own, if there are any, and last in a file that contains the whole model."""
    signature_keys: tuple[str, ...]
    """Keys that identify it, without prefix: each layout of its files has one of them."""
    folder: str = ""
    """Its subfolder in a diffusers folder."""
    option: str = MODEL
    """The option that names its file."""
    file: str = "its file"
    """What to set this option to."""
    title: str = ""
    """In a sentence: "the CLIP-L text encoder"."""
    fitting: tuple[str, ...] = ()
    """Accepted variants of a file of its own, including smaller ones for smaller models. None: the file of the base
    model contains this component."""
    first_layer: FirstLayer | None = None
    """None: it may have any input channels."""
    optional: bool = False
    """Whether only some models of the family have it: it is opened where its option or a diffusers folder has it."""

    @property
    def tokenizer_folder(self) -> str:
        """The subfolder of a text encoder's tokenizer in a diffusers folder."""
        return self.folder.replace("text_encoder", "tokenizer")

    def prefix_in(self, keys: Container[str]) -> str | None:
        """Return the prefix of its keys in a file, or None if the file does not contain it."""
        return next((p for p in self.prefixes if any(p + key in keys for key in self.signature_keys)), None)

    def absent_from(self, model: object) -> str:
        """Return the sentence for a model that does not contain it."""
        return f"{self.option}: '{model}' contains no {self.kind}; set {self.option} to {self.file}"

    def other_variant(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """Return the name of a file with these shapes by key if the component has different input channels; else an
        empty text."""
        prefix = self.prefix_in(shapes)
        return self.first_layer.other_variant(shapes, prefix) if self.first_layer and prefix is not None else ""


@dataclass(frozen=True, kw_only=True)
class PanelCard:
    """A panel of the page with options that only this family has."""

    group: type[OptionGroup]
    names: tuple[str, ...]
    """Options in the order of their controls; the rest of the group follows."""


@dataclass(frozen=True, kw_only=True)
class DynamicGraphs:
    """Graphs that dynamic compiling adds to the first shape's, once for each reason."""

    always: int = 0
    sizes: int = 0
    """If the sizes of the images vary."""
    tokens: int = 0
    """If the numbers of tokens or of images in a batch vary."""
    images: int = 0
    """If the numbers of images in a batch vary, in addition."""


@dataclass(frozen=True, kw_only=True)
class GraphCounts:
    """How many graphs it takes to compile the blocks of the denoiser."""

    kinds: int
    """Classes of blocks; every further graph of a class is a recompile."""
    per_shape: int
    """Graphs for each batch shape."""
    per_token_count: int
    """Graphs for each number of tokens: buckets with the same number share them."""
    dynamic: Mapping[str, DynamicGraphs]
    """compile_dynamic -> graphs added to those of one shape, instead of graphs for the others."""
    seconds: float
    """To compile one with an empty cache, on the CPU of `Speed`."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A step measured on one NVIDIA H200, or H100, with 16 CPU cores, at 1024x1024 (docs/performance.md)."""

    method: str
    options: Mapping[str, Any]
    """Options that decide the speed, where they differ from the defaults; the batch size among them."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FilesCard:
    """The files of a base model, for the code that opens and checks them."""

    components: tuple[ComponentCard, ...] = ()
    """Denoiser, text encoders, VAE."""
    base_file: str = "a model file"
    """What to choose as the base model, with an article."""
    base_model: str = "a model of this family"
    """The contents of this file, in a sentence."""

    @property
    def separate_components(self) -> tuple[ComponentCard, ...]:
        """Components that usually have files of their own."""
        return tuple(component for component in self.components if component.fitting)

    @property
    def denoiser(self) -> ComponentCard | None:
        """The component that is trained; None if the family lists no components."""
        return next((component for component in self.components if component.name == DENOISER), None)

    @property
    def vae_option(self) -> str:
        """The option that names the VAE's file."""
        return next((c.option for c in self.components if c.name == VAE and c.option != MODEL), "vae")


@dataclass(frozen=True, kw_only=True)
class RecognitionCard:
    """How files, folders and names are recognised as the family's."""

    marks: tuple[Mark, ...] = ()
    """Keys that only such a model file has; the first match decides."""
    recognise: Callable[[Header], tuple[str | None, str] | None] = lambda header: None
    """Identifies a model file where one key is not enough: (family, variant), or None if it is a different model."""
    lora_marks: tuple[str, ...] = ()
    """Substrings of a key that only a LoRA for this family's denoiser has."""
    lora_encoder_marks: tuple[str, ...] = ()
    """The same for its text encoders, which other families have too; they count where no denoiser is recognised."""
    pipelines: tuple[Mark, ...] = ()
    """Prefixes of the pipeline's class name in a diffusers folder."""
    folder_variant: Callable[[Path, str], str] = lambda folder, variant: variant
    """Diffusers folder, its variant by the pipeline -> exact variant."""
    widths: tuple[tuple[str, str, int, int, str], ...] = ()
    """Components by size: (variant, end of a key, axis, size of that axis, exact variant)."""
    hub_words: tuple[str, ...] = ()
    """Words that reveal the family in the name of a Hugging Face model."""


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of the Hugging Face Hub that the family can be trained with."""

    repo: str
    file: str
    """Its path in the repository."""
    gigabytes: float
    licence: str
    about: str
    """What it is, in a few words."""
    option: str = MODEL
    """The option that names it."""
    gated: bool = False
    """Whether its terms have to be accepted on the Hub first."""


@dataclass(frozen=True)
class HubRepo:
    """A repository of the Hugging Face Hub with files that a family can be trained with."""

    name: str
    licence: str = "Apache-2.0"
    """Of its files, unless one has its own."""
    folder: str = ""
    """The beginning of their paths."""
    gated: bool = False

    def file(
        self, path: str, gigabytes: float, about: str, *, option: str = MODEL, licence: str | None = None
    ) -> HubFile:
        """Return a file by its path below `folder`."""
        return HubFile(
            repo=self.name,
            file=self.folder + path,
            gigabytes=gigabytes,
            licence=licence or self.licence,
            about=about,
            option=option,
            gated=self.gated,
        )


@dataclass(frozen=True, kw_only=True)
class HubCard:
    """The family on the Hugging Face Hub, for models that are published there."""

    model: str = ""
    """The model on the Hub that base models in files are mostly made from."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """modelspec.architecture of a saved file -> the same, for variants that have a different one."""
    tags: tuple[str, ...] = ()
    """Tags of its models on the Hub."""
    files: tuple[HubFile, ...] = ()
    """Files for its options, the usual one of each option first. Sizes and licences are those on the repositories'
    pages."""


@dataclass(frozen=True, kw_only=True)
class PageCard:
    """The family's texts on the page."""

    recommended: Mapping[str, Any] = field(default_factory=dict)
    """Option -> value that trains the model well, where the default does not."""
    recommended_note: str = ""
    """A sentence that follows them on the page."""
    recommend: Callable[[str], Mapping[str, Any]] | None = None
    """Words that the page found for the base model -> recommended values; None: always `recommended`."""
    model_panel: tuple[str, ...] = ()
    """Options of this family alone that belong to the Model panel, in order."""
    panels: tuple[PanelCard, ...] = ()
    use_hints: Mapping[str, str] = field(default_factory=dict)
    """Method -> where people put the trained file, HTML."""
    kohya: KohyaFamily | None = None
    """Its keys in the configuration files of kohya_ss, if it has them."""
    demo: Mapping[str, Any] = field(default_factory=dict)
    """Options of the demo in addition to the common ones."""
    demo_prompts: str = ""
    """Options at the end of the demo's prompts, such as --s 16."""
    demo_first: bool = False
    """Whether the demo trains this family unless another is named."""
    trained_demo: Mapping[str, Any] = field(default_factory=dict)
    """Options of the demo of a LoRA on the trained miniature, where there is one."""


@dataclass(frozen=True, kw_only=True)
class PlanCard:
    """Facts from which the plan of a run computes tokens, graphs, times and memory."""

    tokens: Callable[[int, int, int], int] = image_tokens
    """Width and height in pixels, frames -> tokens of the longest sequence that attention sees of a sample."""
    share_above: Callable[[FlowOptions, int, float], float] = share_above
    """Options, tokens of an image, noise level -> the share of timesteps above this level, of a family of flow
    matching."""
    graphs: GraphCounts | None = None
    """None: not known."""
    speeds: tuple[Speed, ...] = ()
    memory: MemoryFacts | None = None
    """Of the largest model of the family; None: not known."""
    memory_of_others: tuple[MemoryFacts, ...] = ()
    """Of its models of other sizes."""
    memory_named: Callable[[OptionValues], MemoryFacts | None] = lambda settings: None
    """Settings -> the facts of the model that they name, for a plan without its file; None: they name none."""
    trains_two: Callable[[OptionValues], bool] = lambda settings: False
    """Settings -> whether a second set of the denoiser's weights waits for its turn."""


@dataclass(frozen=True, kw_only=True)
class DistilledCard:
    """Models of a family that were distilled to few steps, which names alone distinguish."""

    named: re.Pattern[str]
    """Found in the name of their file or folder."""
    sample_defaults: SamplePrompt
    """Values that a sample prompt does not set."""


@dataclass(frozen=True, kw_only=True)
class FamilyCard:
    """A model family as the page, the options and the file recognition see it."""

    name: str
    """As in a settings file, and the name of its folder."""
    title: str
    """As people write it."""
    order: int
    """Position on the page."""
    derived_from: str | None = None
    """The family whose model has the same layout: files of either have the same keys and may be recognised as the
    base's, LoRAs have the same names, and modules of that family's folder may be imported."""
    more_methods: tuple[str, ...] = ()
    """Methods besides LoRA and full training for which it has a script."""
    selected_by: tuple[str, Any] | None = None
    """Option and value with which settings for the family that it is derived from are for this one, as other programs
    have one script for both."""
    groups: Groups = ()
    """Option groups that not every family has."""
    capabilities: frozenset[str] = frozenset()
    """Keys of CAPABILITIES."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option -> values that it takes for this family only."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Option of its groups -> its own default: the one that sd-scripts or musubi-tuner has for the family."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Option -> sentences added to its help; on the page for this family and those derived from it only."""
    files: FilesCard = field(default_factory=FilesCard)
    recognition: RecognitionCard = field(default_factory=RecognitionCard)
    hub: HubCard = field(default_factory=HubCard)
    page: PageCard = field(default_factory=PageCard)
    plan: PlanCard = field(default_factory=PlanCard)
    network_modules: tuple[str, ...] = ("networks.lora",)
    """Values of network_module that select the built-in LoRA. One that no other family has reveals the family."""
    network_groups: Groups = ()
    """Groups of its own whose options are also accepted in network_args."""
    network_rules: Callable[[NetworkArguments, Warn], Rules] = lambda arguments, warn: Rules()
    """network_args -> the family's rules for each layer."""
    side_multiple: int = 16
    """Multiple to which the sides of sample images are rounded."""
    bucket_multiple: int = 32
    """Multiple to which the sides of buckets are rounded."""
    token_multiple: int = 16
    """Multiple to which sides are rounded with equal_token_buckets: buckets of equal area with such sides have the
    same number of tokens at each level of the model that has attention."""
    clips: ClipFacts | None = None
    """Set by a family that is trained on clips, which then has the capability `clips` and ClipOptions; None: on images
    alone."""
    needs_controls: bool = True
    """Whether a family with the capability `control_images` is always trained with them; clips may need none."""
    longest_control: float = math.inf
    """The longer side of a control image, relative to the shorter one."""
    text_limit: Callable[[OptionValues, str], TextLimit] | None = None
    """Settings, variant of the base model (empty: not known) -> the length at which captions are cut; None: not
    known."""
    model_remarks: Callable[[OptionValues, str], Iterable[str]] = lambda settings, variant: ()
    """Settings, variant of the base model -> warnings about settings that have no effect on it."""
    sample_defaults: SamplePrompt = field(default_factory=SamplePrompt)
    """Values that a sample prompt does not set."""
    distilled: DistilledCard | None = None
    """None: not known."""
    no_guidance: float = 1.0
    """The guidance_scale of musubi-tuner's commands that is none: 0 where it adds to the prompt's prediction."""
    problems: tuple[Check, ...] = ()
    remarks: tuple[Check, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Name of a flag or key in another trainer, with a meaning specific to this family -> option."""

    def __post_init__(self) -> None:
        if self.clips:
            object.__setattr__(self, "capabilities", self.capabilities | {"clips"})
            object.__setattr__(self, "groups", tuple(dict.fromkeys((*self.groups, ClipOptions))))
        if unknown := self.capabilities - CAPABILITIES.keys():
            raise ValueError(f"unknown capability of {self.name}: {', '.join(sorted(unknown))}")

    @property
    def scripts(self) -> dict[str, str]:
        """Method, or "generate" -> file of its script, in `sd_scripts/`."""
        more = {method: f"{self.name}_train_{method}.py" for method in self.more_methods}
        trained = {"lora": f"{self.name}_train_network.py", "full": f"{self.name}_train.py", **more}
        return {**trained, "generate": f"{self.name}_generate.py"}

    def control_problem(self, path: Path, size: tuple[int, int]) -> str:
        """Return why a control image of this width and height cannot be used; empty if it can."""
        if max(size) <= self.longest_control * min(size):
            return ""
        most = f"{self.title} reads images up to {self.longest_control:g} times as long as wide"
        return f"the control image '{path}' is too elongated: {most}; crop it"

    def defaults_of_samples(self, sample_model: str | None) -> SamplePrompt:
        """Return the values that a sample prompt does not set in a run whose samples are made with this model; None:
        with the trained one."""
        if self.distilled and self.distilled.named.search(PurePath(sample_model or "").name):
            return self.distilled.sample_defaults
        return self.sample_defaults

    @property
    def generated_size(self) -> tuple[int, int]:
        """Width and height of generated images and clips, unless they are set."""
        return (self.sample_defaults.width, self.sample_defaults.height) if self.clips else (1024, 1024)

    def prompt_remarks(self, prompt: SamplePrompt, variant: str = "") -> Findings:
        """Yield the option of an image that a prompt does not name, with how its sample is made without it, or of a
        start image or a control clip that this variant of the base model (empty: not known) does not read."""
        if self.clips and variant and self.has(CONTROL_CLIP.needs):
            controlled = variant in self.clips.controlled
            if controlled and not prompt.control_clip:
                yield CONTROL_CLIP.key, f"{variant} follows a control clip; name one with --{CONTROL_CLIP.letters}"
            elif prompt.control_clip and not controlled:
                yield CONTROL_CLIP.key, f"--{CONTROL_CLIP.letters} has no effect: {variant} reads no control clip"
            if controlled and prompt.end_image:
                yield END.key, f"--{END.letters} has no effect: {variant} reads no end image"
        if self.clips and (from_image := self.clips.from_image.get(variant)) is not None:
            if from_image and not prompt.start_image:
                yield START.key, f"{variant} makes clips from a start image; name one with --{START.letters}"
            elif prompt.start_image and not from_image:
                yield START.key, f"--{START.letters} has no effect: {self.title} makes clips from text alone"
        elif prompt.start_image or prompt.control_images:
            return
        elif self.clips and self.clips.begin_with_image and self.clips.fitting(prompt.frames) > 1:
            yield START.key, f"without a start image (--{START.letters}), the clip begins with a grey image"
        elif self.has(CONTROLS.needs) and self.needs_controls:
            yield CONTROLS.key, f"without a control image (--{CONTROLS.letters}), the image is made from the text alone"

    def trains(self, family: str | None) -> bool:
        """Whether a model file that was recognised as of `family` may be one of this family."""
        return family is not None and family in (self.name, self.derived_from)

    def has(self, capability: str) -> bool:
        """Whether the family is capable of something that CAPABILITIES names."""
        assert capability in CAPABILITIES, capability
        return capability in self.capabilities

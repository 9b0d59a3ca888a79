"""Data of a run: the data plan, caches, data loading for a step, and sample prompts."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.caches.latent_store import LatentStore
from sd_scripts.data.caches.text_caching import TextStore, cache_text
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan.dataset import DataPlan, plan_data
from sd_scripts.data.plan.epochs import BatchShape, ShortBatches
from sd_scripts.data.reader import BatchReader
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.components import DENOISER, VAE, Components, FirstValues
from sd_scripts.families.common.family import Family, TextOptions, Tokens
from sd_scripts.families.common.objective import ObjectiveOptions
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.common.sampling import eval_mode, on_device
from sd_scripts.options.compile import CompileMoreOptions
from sd_scripts.options.dataset import CAPTIONS_AT_ONCE, CacheOptions, DatasetOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.planning.trained_shapes import shapes_of
from sd_scripts.settings.checks import model_files as model_checks
from sd_scripts.training.compiling.compiler import wait_until_warm
from sd_scripts.training.compiling.recovery import Recovery
from sd_scripts.training.context import Context
from sd_scripts.training.methods.method import Method
from sd_scripts.training.process.model_download import download_model
from sd_scripts.training.sample_model import SampleModel


@dataclass(kw_only=True)
class TrainingData:
    """Dataset of a run with its cached latents and text encoder outputs."""

    context: Context
    family: Family
    components: Components
    plan: DataPlan
    trains_encoder: tuple[bool, ...]
    """Which text encoders are trained: steps encode with them."""
    prompts: Sequence[SamplePrompt] = ()
    """Prompts of the samples."""
    latents: LatentStore | None = None
    text: TextStore | None = None
    sample_model: SampleModel | None = None
    """The model that this process makes samples with; None: the trained one, or it makes none."""
    prompt_text: list[dict[str, Tensor]] = field(default_factory=list)
    """For each prompt the outputs of text encoders that no step calls."""

    @property
    def short_batches(self) -> ShortBatches:
        return self.context.settings[DatasetOptions].short_batches

    def shapes(self) -> dict[BatchShape, float]:
        return shapes_of(self.context.settings, self.family.card, self.plan)

    @property
    def objective(self) -> ObjectiveOptions:
        return self.family.objective_options(self.context.settings)

    @property
    def step_encoders(self) -> list[nn.Module]:
        """The text encoders that steps call: the trained ones, or all if captions are not cached."""
        encoders = self.components.text_encoders
        return encoders if self.text is None else [*compress(encoders, self.trains_encoder)]

    @property
    def condition_names(self) -> tuple[str, ...]:
        """The inputs of this model that are made from pixels in addition to latents."""
        return tuple(self.family.conditions.names(self.components)) if self.family.conditions else ()

    @property
    def condition_encoders(self) -> tuple[str, ...]:
        """The components that make these inputs, besides the VAE."""
        names = self.family.conditions.components if self.family.conditions and self.condition_names else ()
        return tuple(name for name in names if name in self.components.sources)

    def loader(self, plan: DataPlan, *, accumulation: int = 1, max_train_steps: int = 0) -> BatchLoader:
        data = self.context.settings[DatasetOptions]
        reader = BatchReader(
            plan,
            max_train_steps=max_train_steps,
            latents=self.latents,
            text=self.text,
            conditioning=self.family.conditioning,
        )
        return BatchLoader(
            reader,
            warn=self.context.warn,
            workers=data.max_data_loader_n_workers,
            persistent=data.persistent_data_loader_workers,
            rank=self.context.rank,
            world=self.context.world,
            short_batches=self.short_batches if plan is self.plan else "keep",
            accumulation=accumulation,
            pin_memory=self.context.device.type == "cuda",
            at_high_noise=self.family.high_noise(self.objective).decides if plan.smaller_buckets() else None,
        )

    def text_of_prompt(self, number: int) -> dict[str, Tensor]:
        """Return the text outputs of a sample's captions: encoded ahead, or now by the step encoders."""
        text = self.prompt_text[number] if self.prompt_text else {}
        encoders = self.step_encoders
        if encoders:
            tokens = self._tokens(self.family.text.prompt_captions(self.prompts[number]), of_steps=True)
            with torch.no_grad(), torch.compiler.set_stance("force_eager"), eval_mode(encoders):
                text = text | self.family.text.encode(self.components, tokens)
        return text

    def encode_prompts(self) -> None:
        """Encode the captions of samples with the text encoders that no step calls."""
        for prompt in self.prompts:
            tokens = self._tokens(self.family.text.prompt_captions(prompt), of_steps=False)
            with torch.no_grad():
                text = self.family.text.encode(self.components, tokens)
            self.prompt_text.append({name: tensor.cpu() for name, tensor in text.items()})

    def _tokens(self, captions: Sequence[Caption], *, of_steps: bool) -> Tokens:
        """Return the tokens of the encoders that steps call, or of the others."""
        tokens = self.family.text.tokenize(self.components, captions, TextOptions.of(self.context.settings))
        called = [self.text is None or trains for trains in self.trains_encoder]
        return {encoder: each for encoder, each in tokens.items() if called[encoder] == of_steps}


def read_dataset(context: Context, family: Family) -> DataPlan:
    """Return the images of a run. Raises ValueError for mistakes in the dataset."""
    return plan_data(
        context.settings,
        family.card,
        seed=context.seed,
        warn=context.warn,
        text_sees_controls=family.text.sees_controls,
        progress=context.cancellable_phase("reading the dataset"),
    )


def open_training_data(
    context: Context, family: Family, method: Method, plan: DataPlan, prompts: Sequence[SamplePrompt]
) -> TrainingData:
    """Return the data of a run with its base model, which is not loaded yet."""
    download_model(context.settings[ModelOptions], context)
    lowram = context.settings[ModelOptions].lowram
    components = method.open(family, context, context.device if lowram else torch.device("cpu"))
    for remark in model_checks.model_remarks(context.settings, Path(components.source)):
        context.warn(remark)
    components.on_load = partial(method.change_base, family, components, context)
    training_data = TrainingData(
        context=context,
        family=family,
        components=components,
        plan=plan,
        trains_encoder=method.trains_text_encoders(family, context),
        prompts=prompts,
    )
    settings = context.settings
    source = family.open_sample_model(settings[ModelOptions], settings[SampleOptions], components.sources[DENOISER])
    if source and context.rank < len(prompts):
        training_data.sample_model = SampleModel(
            source, partial(method.change_sample_model, family, components, context)
        )
    warn_about_known_samples(training_data)
    check_control_clips(training_data)
    return training_data


def batches_per_epoch(context: Context, plan: DataPlan) -> int:
    """Return the batches of one process, before the model is loaded. Raises ValueError if images fill no batch."""
    short_batches = context.settings[DatasetOptions].short_batches
    # the loader that trains warns about images that fill no batch
    return len(BatchLoader(BatchReader(plan), warn=lambda _: None, world=context.world, short_batches=short_batches))


def warn_about_known_samples(training_data: TrainingData) -> None:
    """Warn about samples that the model is shown as a whole. Raises ValueError if there are no others."""
    conditions, items = training_data.family.conditions, training_data.plan.items
    if not (conditions and training_data.condition_names):
        return
    known = sum(item.fit.bucket.frames < conditions.shortest for item in items)
    if not known:
        return
    which = "all samples have" if known == len(items) else f"{known} of {len(items)} samples have"
    sentence = (
        f"target_frames: {which} one frame, which this image-to-video model is given as its image, so they teach it "
        "nothing; choose clips, with target_frames above 1"
    )
    if known == len(items):
        raise ValueError(sentence)
    training_data.context.warn(sentence)


def check_control_clips(training_data: TrainingData) -> None:
    """Raise ValueError if the model follows a control clip and a sample has none of its length, or the reverse."""
    conditions, plan = training_data.family.conditions, training_data.plan
    if not (conditions and conditions.control_clips):
        return
    follows = conditions.control_clips(training_data.components)
    for item in (*plan.items, *(plan.validation.items if plan.validation else ())):
        if not follows and item.controls:
            raise ValueError("control_directory: this model does not follow control clips; remove it")
        if follows and len(item.controls) != 1:
            many = f"has {len(item.controls)} control clips" if item.controls else "has no control clip"
            raise ValueError(
                f"control_directory: '{item.path}' {many}, but this model follows one; choose a folder with one under "
                "the name of each sample"
            )
        frames = item.fit.bucket.frames
        if follows and item.controls[0].fit.bucket.frames != frames:
            raise ValueError(
                f"control_directory: '{item.controls[0].path}' is an image, but '{item.path}' has {frames} frames; "
                "choose a control clip for it"
            )


def warn_about_cut_texts(training_data: TrainingData) -> None:
    """Warn about captions and prompts that are longer than the text encoders read, also if they are cached."""
    context = training_data.context
    text = training_data.family.text
    if not (text.limit and context.is_main):
        return
    limit = text.limit(training_data.components, TextOptions.of(context.settings))
    prompts = (caption.text for prompt in training_data.prompts for caption in text.prompt_captions(prompt))
    for remark in (limit.caption_remark(training_data.plan.whole_captions()), limit.prompt_remark(prompts)):
        if remark:
            context.warn(remark)


def encode_ahead(training_data: TrainingData, recovery: Recovery, *, keep_all: bool) -> None:
    """Fill the caches that the options ask for and encode the sample prompts. The VAE, which is loaded or read late,
    and then the text encoders, which are loaded here, are freed unless steps or samples need them, or `keep_all`."""
    components = training_data.components
    cache = training_data.context.settings[CacheOptions]
    if cache.caches_latents:
        cache_images(training_data, recovery.with_fallback)
        if not keep_all and not training_data.prompts:
            components.free(VAE, *training_data.condition_encoders)
    if not _reads_encoders_late(training_data, keep_all=keep_all):
        components.load(*components.encoder_names)
    if cache.caches_text:
        cache_captions(training_data)
        called = training_data.step_encoders
        encoders = zip(components.encoder_names, components.text_encoders, strict=True)
        seeing = training_data.condition_encoders if training_data.latents is None else ()
        if not keep_all:
            components.free(*(name for name, each in encoders if each not in called and name not in seeing))
    training_data.context.accelerator.wait_for_everyone()


def reads_vae_late(training_data: TrainingData, *, keep_all: bool) -> bool:
    """Return whether the VAE is loaded only once an image must be encoded: if all latents are on disk, the run needs
    none."""
    settings = training_data.context.settings
    to_disk = settings[CacheOptions].cache_latents_to_disk
    compiled = settings[CompileMoreOptions].compile_vae
    needed = keep_all or bool(training_data.prompts) or compiled
    return to_disk and not needed and _load_plainly(training_data.components, [VAE])


def _reads_encoders_late(training_data: TrainingData, *, keep_all: bool) -> bool:
    """Return whether the text encoders are loaded only once a caption must be encoded. With
    base_weights they are loaded first, since the cache key depends on the merged weights."""
    settings = training_data.context.settings
    components = training_data.components
    network = settings.get(NetworkOptions)
    unchanged = not (network and network.base_weights)
    to_disk = settings[CacheOptions].cache_text_encoder_outputs_to_disk
    needed = keep_all or any(training_data.trains_encoder)
    return to_disk and unchanged and not needed and _load_plainly(components, components.encoder_names)


def _load_plainly(components: Components, names: Iterable[str]) -> bool:
    """Return whether the cache key follows from the files of these components."""
    return all(name in components.sources and components.sources[name].loads_plainly for name in names)


def cache_images(training_data: TrainingData, run: Callable[[Callable[[], Tensor]], Tensor]) -> None:
    """Fill the latent cache with the VAE; `run` calls its argument, such as compiled code."""
    context = training_data.context
    components = training_data.components
    family = training_data.family
    cache = context.settings[CacheOptions]
    names = [VAE, *training_data.condition_encoders]
    conditions = training_data.condition_names
    with _ready_on_demand(training_data, names) as ready:

        def encode(pixels: Tensor) -> Tensor:
            ready()
            return run(partial(family.encode_images, components, pixels))

        def encode_conditions(pixels: Tensor) -> dict[str, Tensor]:
            assert family.conditions, "only a family that has them names conditions"
            ready()
            with torch.no_grad():
                return family.conditions.encode(components, pixels)

        training_data.latents = cache_latents(
            training_data.plan,
            encode,
            encoder_key=encoder_key(map(components.first_values, names)),
            layout=family.latents,
            job=_cache_job(context, "caching latents", cache.cache_latents_to_disk, cache.vae_batch_size),
            conditions=conditions,
            encode_conditions=encode_conditions,
        )


def cache_captions(training_data: TrainingData) -> None:
    """Fill the text cache with the text encoders, and encode the sample prompts."""
    context = training_data.context
    components = training_data.components
    family = training_data.family
    cache = context.settings[CacheOptions]
    fits = family.text.cache_fits
    to_disk = cache.cache_text_encoder_outputs_to_disk
    batch_size = cache.text_encoder_batch_size or CAPTIONS_AT_ONCE
    options = TextOptions.of(context.settings)
    with _ready_on_demand(training_data, components.encoder_names) as ready:

        def encode(captions: list[Caption]) -> dict[str, Tensor]:
            ready()
            tokens = family.text.tokenize(components, captions, options)
            with torch.no_grad():
                return family.text.encode(components, tokens)

        training_data.text = cache_text(
            training_data.plan,
            encode,
            encoder_key=encoder_key(
                map(components.first_values, components.encoder_names),
                *family.text.cache_key(components, options),
            ),
            suffix=family.text.cache_suffix,
            job=_cache_job(context, "caching text", to_disk, batch_size),
            trim=family.text.trim,
            fits=partial(fits, components) if fits else None,
        )
        if training_data.prompts:
            ready()
            training_data.encode_prompts()


def place_on_device(training_data: TrainingData) -> None:
    """Move the steps' inputs to the device; frozen modules that encoded ahead stay in main memory."""
    components = training_data.components
    device = training_data.context.device
    if not training_data.context.sharded:  # shards are moved block by block
        placement = placement_of(training_data.context.settings)
        training_data.family.place(components, placement, device)
        if sample_model := training_data.sample_model:
            assert training_data.family.block_lists
            sample_model.load(training_data.family.block_lists, components.denoiser, placement)
    if training_data.latents is None:
        for name in (VAE, *training_data.condition_encoders):
            components.module(name).to(device)
    for encoder in training_data.step_encoders:
        encoder.to(device)


def _cache_job(context: Context, phase: str, to_disk: bool, batch_size: int) -> CacheJob:
    return CacheJob(
        warn=context.warn,
        to_disk=to_disk,
        batch_size=batch_size,
        skip_check=context.settings[CacheOptions].skip_cache_check,
        progress=context.cancellable_phase(phase),
        rank=context.rank,
        world=context.world,
    )


@contextmanager
def _ready_on_demand(training_data: TrainingData, names: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Yield a function that loads the components, if they are not, and moves them to the device until the end of the
    block: full caches need none."""
    components = training_data.components
    device = training_data.context.device
    with ExitStack() as moved:

        def ready() -> None:
            wait_until_warm()
            for name in names:
                if not components.is_loaded(name):
                    components.load(name)
                moved.enter_context(on_device(components.module(name), device))

        yield ready
    if device.type == "cuda":
        torch.cuda.empty_cache()


def encoder_key(components: Iterable[Iterable[FirstValues]], *more: object) -> str:
    """Return a cache key of encoders: a few numbers of every tensor identify weights under any path."""
    digest = hashlib.sha256(repr(more).encode())
    for tensors in components:
        for name, shape, values in tensors:
            digest.update(f"{name}{tuple(shape)}{values.dtype}".encode())
            digest.update(values.float().cpu().numpy().tobytes())
    return digest.hexdigest()

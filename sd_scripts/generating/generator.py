"""A model that generates images: loaded in stages, kept between requests, its adapters swapped in place."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace as with_changes
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.family import Family, TextOptions
from sd_scripts.families.common.placing import Placement, placement_of
from sd_scripts.families.common.sampling import Decode, on_device, previewing
from sd_scripts.generating.adapters import Adapter, component_names, layers_of, merge, replace, written_at
from sd_scripts.generating.recorded_forward import RecordedForward
from sd_scripts.library.compile_utils import compile_model
from sd_scripts.library.diffusion.media import Media
from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.library.quantization.quantized import format_of
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.generate_settings import DTYPES, AdapterFile, training_settings
from sd_scripts.settings.recording import uses_cuda_graphs
from sd_scripts.settings.settings import Settings
from sd_scripts.training.compiling.compiler import graphs_expected

logger = logging.getLogger(__name__)

SIZES = 8
"""Sizes of images whose graphs are kept; further ones run uncompiled."""
MOST_TEXTS = 256
"""Encoded prompts that are kept."""
SPARE = 1.2
"""Free GPU memory, relative to a text encoder's size, from which on it encodes there next to the denoiser."""
Step = Callable[[int, int], None]
"""Called after each sampling step with (done, total); an exception ends the image."""


class Generator:
    """The constructor opens the model's files; components are loaded when an image needs them."""

    def __init__(self, family: Family, settings: Settings, reporter: Reporter):
        """Raises ValueError, one sentence that names the option, for files that do not fit."""
        self.family = family
        self._reporter = reporter
        self._compile = settings[CompileOptions]
        self._keeps = settings[GenerateOptions].resident
        self._settings = training_settings(settings)
        self._switches: dict[str, bool] = {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = PRECISIONS[DTYPES[settings[GenerateOptions].dtype]]
        self.components: Components = family.open(self._settings, self._dtype)
        """The model's, with the adapters in the loaded ones."""
        self.components.on_load = self._merge
        self._follow_objective(Path(self.components.source))
        self._adapters: tuple[Adapter, ...] = ()
        self._texts: dict[tuple[Caption, ...], dict[str, Tensor]] = {}
        self._placed = False
        self.recorded: RecordedForward | None = None
        """Its denoiser's passes, where they may be recorded."""
        self.encoder_changes = 0
        """How often adapters changed the text encoders."""
        for remark in family.card.model_remarks(self._settings, describe(Path(self.components.source)).variant):
            reporter.warn(remark)

    def use(self, settings: Settings) -> None:
        """Follow the options of the next images that do not concern the model, such as the size of control images."""
        self._settings = training_settings(settings).replaced(self._switches)

    def _follow_objective(self, model: Path) -> None:
        """Generate as the model states that it was trained, like other programs; report which options that turns on."""
        if not self.family.card.has("noise_schedule"):
            return
        self._switches = describe(model).objective.switches()
        for name in self._switches:
            if not self._settings.value(name):
                self._reporter.warn(f"{name}: turned on, since '{model}' is marked as trained with it")
        self._settings = self._settings.replaced(self._switches)

    def apply(self, files: Sequence[AdapterFile]) -> None:
        """Apply these adapters instead of those before. Raises ValueError, one sentence, and keeps those before."""
        known = {each.file.path: each for each in self._adapters if each.written == written_at(each.file.path)}
        unchanged = known.keys() == {file.path for file in files}
        if unchanged and tuple(files) == tuple(each.file for each in self._adapters):
            return
        read = [
            with_changes(known[file.path], file=file)
            if file.path in known
            else Adapter.read(file, self.family, self.components, self._reporter.warn)
            for file in files
        ]
        changed = frozenset().union(*(adapter.layers for adapter in (*self._adapters, *read)))
        self._adapters = tuple(read)
        if not self.components.experts and any(file.high_noise for file in files):
            self._reporter.warn("lora_weight_high_noise: has no effect, since there is no model for high noise")
        for name in component_names(self.components):
            layers = {n: layer for n, layer in layers_of(self.family, self.components, name).items() if n in changed}
            if layers and name == DENOISER:
                self._swap(layers)
            elif layers and name in self.components.encoder_names:
                self.components.free(name)
                self._texts.clear()
                self.encoder_changes += 1

    def encode(self, prompts: Sequence[SamplePrompt]) -> None:
        """Encode the prompts that are not encoded yet, with the text encoders loaded for it."""
        captions = {self._text_key(prompt) for prompt in prompts}
        if not (new := sorted(captions - self._texts.keys(), key=_texts)):
            return
        components = self.components
        options = TextOptions.of(self._settings)
        if limit := self.family.text.limit:
            texts = _texts(dict.fromkeys(caption for each in new for caption in each))
            if remark := limit(components, options).prompt_remark(texts):
                self._reporter.warn(remark)
        self.load(*components.encoder_names)
        self._reporter.phase("encoding prompts")
        with ExitStack() as moved:
            for encoder in components.text_encoders:
                if self._has_room_for(encoder):
                    moved.enter_context(on_device(encoder, self.device))
            for each in new:
                tokens = self.family.text.tokenize(components, each, options)
                with torch.no_grad():
                    text = self.family.text.encode(components, tokens)
                self._texts[each] = {name: tensor.cpu() for name, tensor in text.items()}
        for oldest in [each for each in self._texts if each not in captions][: max(0, len(self._texts) - MOST_TEXTS)]:
            del self._texts[oldest]
        self.free_encoders()

    def image(
        self, prompt: SamplePrompt, step: Step, preview: Callable[[Decode], None] = lambda decode: None
    ) -> tuple[SamplePrompt, Media]:
        """Return an image, and its prompt with the seed that was drawn if it had none. `preview` is called after each
        sampling step, where the family offers previews."""
        return self.images([prompt], step, preview)[0]

    def images(
        self,
        prompts: Sequence[SamplePrompt],
        step: Step,
        preview: Callable[[Decode], None] = lambda decode: None,
    ) -> list[tuple[SamplePrompt, Media]]:
        """Return several images of one prompt, which differ in their seeds alone, as `image` does; they are generated
        together. Only families with the capability `batches` take more than one."""
        prompts = [each if each.seed is not None else with_changes(each, seed=secrets.randbits(32)) for each in prompts]
        first = prompts[0]
        self.encode(prompts)
        self.place()
        text = self._texts[self._text_key(first)]
        self._reporter.phase("generating")

        def sample() -> list[Media]:
            if len(prompts) == 1 or not self.family.sample_batch:
                return [self.family.sample(self.components, first, text, self._settings)]
            return self.family.sample_batch(self.components, prompts, text, self._settings)

        with previewing(_after_each_step(first.steps, step, preview)):
            return list(zip(prompts, self._with_fallback(sample), strict=True))

    def _text_key(self, prompt: SamplePrompt) -> tuple[Caption, ...]:
        """Return the inputs of a prompt's text outputs."""
        return tuple(self.family.text.prompt_captions(prompt))

    def close(self) -> None:
        """Give the memory back."""
        self._free_denoiser()
        self.components.free(*self.components.sources)
        self._texts.clear()

    def load(self, *names: str) -> None:
        """Load the components that are not loaded yet, with the adapters."""
        absent = [name for name in names if _is_empty(self.components.module(name))]
        if absent:
            self._reporter.phase("loading")
            self.components.load(*absent)

    def free_encoders(self) -> None:
        """Give the text encoders' memory back, unless the model is kept for further requests."""
        if not self._keeps or self._settings[ModelOptions].lowram:
            self.components.free(*self.components.encoder_names)

    def place(self) -> None:
        """Load the denoiser and the VAE, move the denoiser to the device and compile its blocks."""
        self.load(VAE, DENOISER)
        if self._placed:
            return
        placement = with_changes(placement_of(self._settings), offloads_idle=True)  # they change places once a clip
        self.family.place(self.components, placement, self.device)
        denoiser = self.components.denoiser
        if self._compile.compile:
            blocks = self.family.blocks.denoiser(denoiser)
            expected = graphs_expected(self.family, denoiser, SIZES)
            title = self.family.blocks.title
            torch.compiler.set_stance("default")  # compiling a different model in this process may have failed
            compile_model(self._compile, denoiser, blocks, log_prefix=title, graphs_expected=expected, static=True)
        if self._can_record(placement):
            self.recorded = RecordedForward.of(denoiser)
        self._placed = True

    def _can_record(self, placement: Placement) -> bool:
        """Return whether steps may be recorded: swapped blocks and experts change their addresses, and the compiler may
        record blocks itself."""
        moves = placement.swapped_blocks or self.components.experts
        return self.device.type == "cuda" and not moves and not uses_cuda_graphs(self._compile)

    def _free_denoiser(self) -> None:
        if self.recorded:
            self.recorded.remove()
            self.recorded = None
        self.components.free(DENOISER)
        self._placed = False

    def _merge(self, name: str) -> None:
        """Add the adapters to a component just loaded."""
        if name in component_names(self.components):
            layers = layers_of(self.family, self.components, name)
            named = ((layer_name, layer) for layer_name, (_, layer) in layers.items())
            merge(named, self._adapters_for(name), self.device, self._dtype)

    def _adapters_for(self, component: str) -> list[Adapter]:
        return [each for each in self._adapters if each.is_for(component, self.components.experts)]

    def _swap(self, layers: dict[str, tuple[str, nn.Module]]) -> None:
        """Replace the adapters in the denoiser: in place, or where weights are quantized, swapped or of two models by
        loading it again. Its graphs stay in either case."""
        if not self._placed:
            self.components.free(DENOISER)
            return
        memory = self._settings.get(MemoryOptions)
        quantized = any(format_of(layer) for layer in self.components.denoiser.modules())
        if quantized or self.components.experts or (memory and memory.blocks_to_swap):
            self._free_denoiser()
            return
        self._reporter.phase("applying adapters")
        source = self.components.sources[DENOISER]
        replace(layers.items(), source.read(source.dtype, source.keep), self._adapters_for(DENOISER))

    def _with_fallback(self, work: Callable[[], list[Media]]) -> list[Media]:
        """Return the result of `work`, made without recorded steps if memory runs out with them."""
        try:
            return self._compiled_or_not(work)
        except torch.OutOfMemoryError as error:
            if not (self.recorded and self.recorded.drop()):
                raise
            traceback.clear_frames(error.__traceback__)  # they keep the allocations alive
        return self._compiled_or_not(work)

    def _compiled_or_not(self, work: Callable[[], list[Media]]) -> list[Media]:
        """Return the result of `work`, made without compiling if the compiler fails."""
        if not self._compile.compile:
            return work()
        try:
            return work()
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            why = _first_line(error)
            if self._compile.compile_fullgraph:
                raise ValueError(f"compile: compiling failed: {why}; turn compile_fullgraph off") from error
            self._reporter.warn(f"compile: compiling failed, so images are made uncompiled: {why}")
            torch.compiler.set_stance("force_eager")
        return work()

    def _has_room_for(self, encoder: nn.Module) -> bool:
        if self.device.type != "cuda":
            return False
        size = sum(tensor.numel() * tensor.element_size() for tensor in encoder.parameters())
        return torch.cuda.mem_get_info(self.device)[0] > SPARE * size


def _texts(captions: Iterable[Caption]) -> list[str]:
    return [caption.text for caption in captions]


def _after_each_step(total: int, step: Step, preview: Callable[[Decode], None]) -> Callable[[Decode], None]:
    """Return the callback of `previewing` after each sampling step; some samplers take two for one."""
    number = count(1)

    def after(decode: Decode) -> None:
        step(min(next(number), total), total)
        preview(decode)

    return after


def _is_empty(module: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

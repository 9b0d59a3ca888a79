"""LoRA training: low-rank adapters on the frozen layers of a model.

With token_string the embeddings of a new token are trained too (pivotal tuning).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.data.plan.trained_token import trained_token
from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.families.common.family import Components, Family
from sd_scripts.formats.words import some
from sd_scripts.library.files.safetensors_io import save_model, with_hashes
from sd_scripts.networks.adapters.lora import StartedLora
from sd_scripts.networks.files.lora_files import LoraFile, merge, read_finite_tensors, read_lora
from sd_scripts.networks.files.lora_names import with_names_of
from sd_scripts.networks.folded.folding import FoldableLinear
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, parameter_groups, plan_layers
from sd_scripts.networks.taken_out import MergedLora
from sd_scripts.networks.targets import layers_after_attention, projected_together
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import BOTH, DIFFUSERS, SD_SCRIPTS, LoraFileOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.runs.outputs import DIFFUSERS_ENDING, EMBEDDING_ENDING
from sd_scripts.training.context import Context
from sd_scripts.training.execution.gradient_clipping import clip_factor
from sd_scripts.training.execution.gradients import GradientBuffer
from sd_scripts.training.methods.embeddings import add_token, find_end_by_id, plan_embeddings, save_embeddings
from sd_scripts.training.methods.external_network import find_module, make_external_network
from sd_scripts.training.methods.method import Method, NetworkTrainable, Trainable


class Lora(Method):
    """Trains low-rank adapters on frozen layers."""

    name = "lora"

    def check(self, network: NetworkOptions | None) -> list[str]:
        if network and not is_built_in_network(network):
            find_module(network.network_module or "")
        return []

    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        if context.sharded:
            raise ValueError(
                "use_fsdp: not supported for LoRA, which is small while the base model is frozen; launch with "
                "--multi_gpu instead"
            )
        components = family.open(context.settings, context.dtype, device)
        add_token(family, components, context)
        _check_files(family, components, context)
        return components

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        if trained_token(context.settings.get(EmbeddingOptions), family.card):
            return (True,) * len(family.text.embeddings)
        return self._adapts_text_encoders(family, context)

    def _adapts_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        options = context.settings[NetworkOptions]
        base = context.settings[OptimizerOptions].learning_rate
        preset = options.built_in.preset if is_built_in_network(options) else None
        if preset and not preset.text_encoders:
            return (False,) * len(family.lora_text_encoders)
        return tuple(
            adapted and not options.network_train_unet_only and options.rate_of_encoder(number, base) > 0
            for number, adapted in enumerate(family.text.adapted(context.settings))
        )

    def needs_all(self, family: Family, network: NetworkOptions | None) -> bool:
        """An external network is shown all modules and may read their weights."""
        return network is not None and not is_built_in_network(network)

    def change_base(self, family: Family, components: Components, context: Context, name: str) -> None:
        """Merge the LoRA files of base_weights into the component, and the training adapter into the denoiser."""
        options = context.settings[NetworkOptions]
        modules = _all_targets(family, components, context)
        changed = [each for each in modules if each.module is components.module(name)]
        if not changed:
            return
        _merge_base_weights(changed, modules, options)
        if options.training_adapter and changed[0] is modules[0]:
            merge(modules[:1], _read_merged("training_adapter", options.training_adapter, modules), 1.0)

    def change_sample_model(self, family: Family, components: Components, context: Context, model: nn.Module) -> None:
        """Merge the LoRA files of base_weights into it, but not the training adapter."""
        modules = _all_targets(family, components, context)
        _merge_base_weights([replace(modules[0], module=model)], modules, context.settings[NetworkOptions])

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        options = context.settings[NetworkOptions]
        all_targets = _all_targets(family, components, context)
        trains_encoder = self._adapts_text_encoders(family, context)
        if options.network_train_text_encoder_only and not any(trains_encoder):
            raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
        if not is_built_in_network(options):
            return make_external_network(family, components, context, trains_encoder=trains_encoder)
        modules = [] if options.network_train_text_encoder_only else _denoiser(family, components, context)
        modules += compress(_text_encoders(family, components, context), trains_encoder)

        args = NetworkArgs.read(context.settings, warn=lambda _: None)  # preflight has warned already
        file = options.network_weights
        weights = _read_network_weights(file, all_targets) if file else None
        plans = plan_layers(modules, args, weights.tensors if weights and options.dim_from_weights else None)
        network = attach(
            [*plans, *plan_embeddings(family, components, context)],
            args.dropouts,
            torch.Generator().manual_seed(context.number("network")),
            torch.bfloat16 if context.settings[TrainingOptions].full_bf16 else torch.float32,
            perturbation=args.perturbation,
            device=context.device,
        )
        find_end_by_id(components)
        if weights:
            _load_initial_weights(weights, network, context)
        if context.settings[CompileOptions].compile:
            saves_memory = context.settings[TrainingOptions].gradient_checkpointing
            _fold(network, [each for each in modules if each.target.folds], saves_memory=saves_memory)
        network.share_gains()
        trainable = LoraTrainable(
            network,
            parameter_groups(network),
            [each.module for each in all_targets],
            norm_limit=options.scale_weight_norms,
            ending=f".{context.settings[LoraFileOptions].save_model_as}",
        )
        if adapter := options.training_adapter:
            trainable.merged = MergedLora(all_targets[0], _read_merged("training_adapter", adapter, all_targets))
        return trainable.name_keys_as(context.settings[LoraFileOptions].save_as_format, all_targets)


class AdapterGradients(GradientBuffer):
    """The gradients of a network's masters: one flat tensor, always at the same address once it must be."""

    def __init__(self, network: AdapterNetwork):
        self._network = network

    @property
    def filled(self) -> bool:  # type: ignore[override]
        return self._network.collected

    def collect(self) -> None:
        self._network.collect_gradients()

    def named(self) -> dict[str, Tensor]:
        return {"masters": self._network.gradients}

    def average(self, processes: int) -> None:
        torch.distributed.all_reduce(self._network.gradients)
        self._network.gradients.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        gradients = self._network.gradients
        norm = torch.linalg.vector_norm(gradients)
        gradients.nan_to_num_(0.0, 0.0, 0.0).mul_(clip_factor(norm, max_norm))
        return norm

    def clear(self) -> None:
        self._network.zero_grad()

    def discard(self) -> None:
        self._network.clear_copies()
        self._network.zero_grad()

    def settle(self) -> bool:
        return self._network.keeps_gradients and self._network.collected

    def fix(self) -> None:
        self._network.keeps_gradients = True

    def written_by_graph(self) -> None:
        self._network.collected = True

    def used_by_graph(self) -> None:
        self._network.collected = False
        self._network.gains.outdated = True  # the graph has also refreshed the copies

    def release(self) -> None:
        self._network.keeps_gradients = False
        self._network.zero_grad()


class LoraTrainable(NetworkTrainable):
    """Our own adapters, with their float32 master weights in one flat buffer."""

    network: AdapterNetwork
    skips_nonfinite = True
    form = SD_SCRIPTS
    """Key names of its files (save_as_format)."""
    merged: MergedLora | None = None
    """The training adapter."""
    targets: Sequence[AdaptedModule] = ()
    """All modules of the model, in the order of the family: they have diffusers' names of the layers."""

    def for_samples(self) -> AbstractContextManager[None]:
        return self.merged.taken_out() if self.merged else super().for_samples()

    def name_keys_as(self, form: str, targets: Sequence[AdaptedModule]) -> LoraTrainable:
        """Set the key names of saved files: sd-scripts, diffusers or both."""
        self.targets, self.form = targets, form
        return self

    @property
    def companions(self) -> tuple[str, ...]:  # type: ignore[override]
        suffixes = []
        if self.form == BOTH:
            suffixes.append(DIFFUSERS_ENDING)
        if len(self.network.layers) != len(self.network.layers_in_file):
            suffixes.append(EMBEDDING_ENDING)
        return tuple(suffixes)

    def save_companion(self, suffix: str, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        if suffix == DIFFUSERS_ENDING:
            self._save_for_diffusers(path, dtype, metadata)
        else:
            save_embeddings(self.network, path, dtype, metadata)

    @cached_property
    def gradients(self) -> AdapterGradients:  # type: ignore[override]
        return AdapterGradients(self.network)

    def updated(self) -> None:
        self.network.perturb()
        self.gradients.clear()
        self.network.refresh()

    def limit_norms(self) -> None:
        if self.norm_limit:
            self.network.limit_norms(self.norm_limit)
            self.network.refresh()

    def state_dict(self) -> dict[str, Tensor]:
        noise = self.network.row_noise
        state = {"masters": self.network.masters, **({"row_noise": noise.deviations} if noise else {})}
        if started := self.network.started:
            state["start"] = torch.cat([part.flatten() for layer in started for part in layer.first])
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        masters = state["masters"]
        if masters.shape != self.network.masters.shape:
            raise ValueError("resume: the state belongs to a different network; restore network_dim and network_args")
        if ("start" in state) != bool(self.network.started):
            raise ValueError("resume: the state belongs to a network with a different lora_init; restore it")
        with torch.no_grad():
            self.network.masters.copy_(masters)
            if self.network.row_noise and "row_noise" in state:
                self.network.row_noise.deviations.copy_(state["row_noise"])
            if started := self.network.started:
                _restore_starts(started, state["start"])
        self.network.refresh()

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        if self.form == DIFFUSERS:
            self._save_for_diffusers(path, dtype, metadata)
            return
        tensors = self.network.file_tensors(dtype)
        save_model(path, tensors, with_hashes(tensors, metadata))

    def _save_for_diffusers(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the file under the key names of diffusers, whose factors contain alpha."""
        tensors = with_names_of(DIFFUSERS, self.network.file_tensors(None), self.targets)
        tensors = {key: tensor.to(dtype or tensor.dtype) for key, tensor in tensors.items()}
        if "ss_network_alpha" in metadata:
            metadata = {**metadata, "ss_network_alpha": metadata["ss_network_dim"]}
        save_model(path, tensors, with_hashes(tensors, metadata))


def _restore_starts(layers: list[StartedLora], state: Tensor) -> None:
    parts = [part for layer in layers for part in layer.first]
    saved = state.split([part.numel() for part in parts])
    for layer, down, up in zip(layers, saved[::2], saved[1::2], strict=True):
        layer.start_from(*(own.to(part).view(part.shape) for own, part in zip((down, up), layer.first, strict=True)))


def layers_to_fold(model: nn.Module, *, saves_memory: bool) -> Iterator[nn.Module]:
    """Yield the layers of a model that are to compute in one product with their base weights if they can; where memory
    is to be saved, those that take more of it then are left out."""
    for layer in model.modules():
        if not (saves_memory and isinstance(layer, FoldableLinear) and layer.fold_takes_memory):
            yield layer


def _fold(network: AdapterNetwork, modules: list[AdaptedModule], *, saves_memory: bool) -> None:
    kinds = {adapter.layer: adapter.kind for adapter in network.layers}
    network.fold(
        (
            layer
            for each in modules
            for layer in layers_to_fold(each.module, saves_memory=saves_memory)
            if kinds.get(layer) in each.target.folds
        ),
        [group for each in modules for group in projected_together(each.module, each.target)],
        [layer for each in modules for layer in layers_after_attention(each.module, each.target)],
    )


def _check_files(family: Family, components: Components, context: Context) -> None:
    """Read the LoRA files of the run, and warn of unused tensors, before anything is loaded.

    Raises ValueError, one sentence that names the option, for a file that cannot be used.
    """
    options = context.settings[NetworkOptions]
    modules = _all_targets(family, components, context)
    merged = [_read_merged("base_weights", file, modules) for file in options.base_weights]
    if options.training_adapter:
        merged.append(_read_merged("training_adapter", options.training_adapter, modules))
        MergedLora(modules[0], merged[-1])
    for sentence in (sentence for file in merged for sentence in file.not_used()):
        context.warn_once(sentence, sentence)  # before the start if the header showed it
    if options.network_weights and is_built_in_network(options):
        for sentence in _read_network_weights(options.network_weights, modules).left_out():
            context.warn_once(sentence, sentence)  # before the start if the header showed it
    elif options.network_weights:
        read_finite_tensors("network_weights", Path(options.network_weights))


def _merge_base_weights(changed: list[AdaptedModule], modules: list[AdaptedModule], options: NetworkOptions) -> None:
    strengths = options.base_weights_multiplier or [1.0] * len(options.base_weights)
    for file, strength in zip(options.base_weights, strengths, strict=True):
        merge(changed, _read_merged("base_weights", file, modules), strength)


def _read_merged(option: str, file: str, modules: list[AdaptedModule]) -> LoraFile:
    lora = read_lora(option, Path(file), modules)
    if not lora.known:
        raise ValueError(f"{option}: '{file}' has no layer of this model; choose a LoRA made for it")
    lora.require_fit(modules)
    return lora


def _read_network_weights(file: str, modules: list[AdaptedModule]) -> LoraFile:
    lora = read_lora("network_weights", Path(file), modules)
    lora.require_fit(modules)
    return lora


def _load_initial_weights(weights: LoraFile, network: AdapterNetwork, context: Context) -> None:
    absent = network.load_tensors(weights.tensors)
    file = weights.path
    if len(absent) == len(network.layers_in_file):
        if theirs := {weights.layers[layer.name][0].kind for layer in network.layers if layer.name in weights.layers}:
            ours = {layer.kind for layer in network.layers}
            raise ValueError(
                f"network_weights: '{file}' has {', '.join(sorted(theirs))}, but {', '.join(sorted(ours))} is to be "
                "trained; choose another network_type, or turn on dim_from_weights"
            )
        raise ValueError(f"network_weights: '{file}' has no layer of this network; choose a file made for this model")
    if absent:
        context.warn(f"network_weights: {len(absent)} layers are not in the file and start fresh: {absent[0]}, ...")
    if left := sorted(weights.layers.keys() - {layer.name for layer in network.layers}):
        context.warn(
            f"network_weights: {len(left)} layers of the file are not trained in this run and will be missing "
            f"from its files: {some(left)}"
        )
    network.refresh()


def _all_targets(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    return [*_denoiser(family, components, context), *_text_encoders(family, components, context)]


def _denoiser(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    lr = context.settings[NetworkOptions].unet_lr
    base = context.settings[OptimizerOptions].learning_rate
    return [AdaptedModule(module=components.denoiser, target=family.lora, lr=base if lr is None else lr)]


def _text_encoders(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    options = context.settings[NetworkOptions]
    base = context.settings[OptimizerOptions].learning_rate
    pairs = zip(components.text_encoders, family.lora_text_encoders, strict=True)
    return [
        AdaptedModule(module=encoder, target=target, lr=options.rate_of_encoder(number, base))
        for number, (encoder, target) in enumerate(pairs)
    ]

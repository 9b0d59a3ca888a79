"""A network: the adapters of a run over one flat buffer of float32 masters, which the optimizer trains.

The adapted layers compute with copies in the model's dtype, in a flat buffer of their own: refreshing the copies is one
cast a step for all tensors of one scale, the gradient norm is one reduction, and processes average one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.quantized import stored_weight
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, read_layer
from sd_scripts.networks.adapters.lora import StartedLora
from sd_scripts.networks.folded.folding import FoldedLayers, fold
from sd_scripts.networks.folded.gains import Gains, gains_of
from sd_scripts.networks.layers import Dropouts


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """Noise on the frozen weights in training, for flatter minima (ggpo_beta, ggpo_sigma).

    Gradient-guided perturbation, LoRA-GGPO, https://arxiv.org/abs/2502.14538. A weight of `out` rows gets Gaussian
    noise whose deviation in row i is (sigma |W_i| + beta |G_i|^2) / sqrt(out): W with the adapter's update in it, G
    the gradient of that update. The adapter gives both norms (`row_squares`).
    """

    beta: float
    sigma: float


class RowNoise:
    """Noise deviations of all Linears of a network, as views in the layers' buffers; 0 before the first update."""

    def __init__(self, perturbation: Perturbation, layers: Sequence[Adapter], device: torch.device):
        self.perturbation = perturbation
        self.layers = [layer for layer in layers if layer.perturbable]
        if not self.layers:
            raise ValueError("network_args: ggpo_beta and ggpo_sigma have no effect on these layers; remove both")
        sizes = [len(layer.layer.weight) for layer in self.layers]  # type: ignore[arg-type]
        self.deviations = torch.zeros(sum(sizes), device=device)
        """(rows of all layers,) float32"""
        self._views = self.deviations.split(sizes)
        self._frozen = [stored_weight(layer.layer, device).square().sum(dim=1) for layer in self.layers]  # type: ignore[arg-type]
        for layer, view in zip(self.layers, self._views, strict=True):
            layer.layer.row_noise = view  # type: ignore[assignment]

    @torch.no_grad()
    def update(self) -> None:
        """Update the deviations from the masters and their gradients; rows with non-finite values stay unchanged."""
        beta, sigma = self.perturbation.beta, self.perturbation.sigma
        for layer, view, frozen in zip(self.layers, self._views, self._frozen, strict=True):
            learned, steep = layer.row_squares()
            weight = (frozen + layer.scale**2 * learned).sqrt()
            fresh = (sigma * weight + beta * layer.scale**2 * steep) / len(view) ** 0.5
            view.copy_(torch.where(fresh.isfinite(), fresh, view))


@dataclass
class AdapterNetwork:
    """All adapted layers of a run, with their masters and compute copies."""

    layers: list[Adapter]
    masters: Tensor
    """(n,) float32: the first tensor of every adapter, then every second one, ... The optimizer's parameters are views
    of it."""
    compute: Tensor
    """(m,) in the model's dtype, of the first m masters. The layers' parameters are views of it, or of the joint
    matrices of folded layers; if all are folded, its memory is freed outside of `refresh`. Of the last n - m the layers
    compute with the masters themselves (TrainedTensor.exact)."""
    segments: list[tuple[slice, float]]
    """Runs of the buffers, each with its scale from master to copy."""
    copies: list[nn.Parameter]
    """The layers' parameters in buffer order."""
    row_noise: RowNoise | None = None
    folded: FoldedLayers | None = None
    """Layers that compute in one product with their base weights; set it through `fold`."""
    gains: Gains = field(default_factory=Gains)
    """DoRA's factors of layers that compute them together; set it through `share_gains`."""

    def __post_init__(self) -> None:
        self.gradients = torch.zeros_like(self.masters)
        """(n,) float32, one buffer, so that processes average it in one all-reduce. Its memory is freed between
        zero_grad and the next collect_gradients, because the memory peak of a step comes before the first
        gradient is ready."""
        self._gradient_views = self._views_of(self.gradients)
        views = dict(zip(self.copies, self._gradient_views, strict=True))
        for layer in self.layers:
            for master, tensor in zip(layer.masters, layer.tensors, strict=True):
                master.grad = views[tensor.copy]
        self._gradient_bytes = self.gradients.untyped_storage().nbytes()
        self.collected = False
        """Whether gradients of the current step are collected."""
        self.keeps_gradients = False
        """Whether their memory is not freed any more, because recorded graphs write there. The first of these allocates
        it, in memory the forward pass no longer needs by then."""
        self.zero_grad()

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        runs = flat.split([copy.numel() for copy in self.copies])
        return [run.view(copy.shape) for run, copy in zip(runs, self.copies, strict=True)]

    @property
    def layers_in_file(self) -> list[Adapter]:
        """The layers that the network's file contains."""
        return [layer for layer in self.layers if layer.in_file]

    def _allocate_gradients(self) -> None:
        if not self.gradients.untyped_storage().nbytes():
            self.gradients.untyped_storage().resize_(self._gradient_bytes)

    @torch.no_grad()
    def refresh(self) -> None:
        """Write the compute copies from the masters, each with its scale."""
        memory = self.compute.untyped_storage()
        if not memory.nbytes():  # else it must stay where it is: recorded graphs read it
            memory.resize_(self.compute.nbytes)
        for run, scale in self.segments:
            if scale == 1.0:
                self.compute[run].copy_(self.masters[run])
            else:
                torch.mul(self.masters[run], scale, out=self.compute[run])
        if self.folded:
            self.folded.refresh(self.compute)
            if self.folded.complete:
                memory.resize_(0)
        self.gains.outdated = True

    def share_gains(self) -> None:
        """Let layers with trained norms compute these together from here on. The base weights must not move."""
        self.gains = gains_of(layer.layer for layer in self.layers)
        self.gains.refresh()
        self.gains.refresh_before({layer.plan.module for layer in self.layers})

    def fold(
        self,
        layers: Iterable[nn.Module],
        groups: Sequence[Sequence[nn.Module]] = (),
        kept_inputs: Iterable[nn.Module] = (),
    ) -> None:
        """Let the foldable `layers` compute in one product with their base weights, where they are
        compiled. The weights must not move from here on.

        `groups`: layers that project_together applies to one input; `kept_inputs`: layers whose input is in memory
        until the backward pass anyway.
        """
        folds = fold(layers, groups, kept_inputs)
        if folds:
            ends = accumulate(copy.numel() for copy in self.copies)
            pairs = [(copy, end) for copy, end in zip(self.copies, ends, strict=True) if end <= self.compute.numel()]
            starts = {copy: end - copy.numel() for copy, end in pairs}
            self.folded = FoldedLayers(folds, self.compute, starts)
            self.refresh()

    @property
    def started(self) -> list[StartedLora]:
        """The layers that start from their base weight."""
        return [layer for layer in self.layers if isinstance(layer, StartedLora)]

    def freeze(self, parameters: Iterable[nn.Parameter]) -> None:
        """Freeze these masters: they get no gradient, so they are not trained and do not count in its norm."""
        frozen = {id(parameter) for parameter in parameters}
        for layer in self.layers:
            for master, tensor in zip(layer.masters, layer.tensors, strict=True):
                tensor.copy.requires_grad_(id(master) not in frozen)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of the compute copies to the masters, adding to what earlier micro-steps left there."""
        self.gains.pass_on()
        self._allocate_gradients()
        target = self.gradients
        views = self._gradient_views
        if self.collected:  # a later micro-step of an accumulation
            target = torch.empty_like(self.gradients)
            views = self._views_of(target)
        pairs = [(view, copy.grad) for view, copy in zip(views, self.copies, strict=True)]
        reached = [(view, grad) for view, grad in pairs if grad is not None]
        for dtype in {grad.dtype for _, grad in reached}:  # PyTorch copies mixed ones one by one
            same = [(view, grad) for view, grad in reached if grad.dtype == dtype]
            torch._foreach_copy_([view for view, _ in same], [grad for _, grad in same])
        if len(reached) < len(pairs):
            # parameters that do not affect the loss, such as the last layer of a text encoder
            torch._foreach_zero_([view for view, grad in pairs if grad is None])
        for run, scale in self.segments:
            if scale != 1.0:
                target[run].mul_(scale)
        if target is not self.gradients:
            self.gradients.add_(target)
        self.collected = True
        self.clear_copies()

    def clear_copies(self) -> None:
        """Drop the gradients that are not collected yet."""
        self.gains.clear()
        for copy in self.copies:
            copy.grad = None

    def perturb(self) -> None:
        """Set the noise of the next steps; call after an update, while its gradients exist."""
        if self.row_noise and self.collected:
            self.row_noise.update()

    def zero_grad(self) -> None:
        """Drop the masters' gradients and free their memory, unless it is kept."""
        if not self.keeps_gradients:
            self.gradients.untyped_storage().resize_(0)
        self.collected = False

    @torch.no_grad()
    def limit_norms(self, limit: float) -> None:
        """Scale down the adapters whose update has a norm above `limit` (scale_weight_norms)."""
        layers = self.layers_in_file
        norms = torch.stack([layer.norm() for layer in layers])
        ratio = (limit / norms.clamp_min(limit / 2)).clamp_max(1.0)
        roots = {degree: ratio.pow(1 / degree).unbind() for degree in {layer.degree for layer in layers}}
        for number, layer in enumerate(layers):
            layer.scale_update(roots[layer.degree][number])

    def file_tensors(self, dtype: torch.dtype | None) -> Tensors:
        """Return the file's tensors: masters on the CPU in `dtype` (None: unchanged), under their keys. Those that are
        stored as they are trained are views of one buffer."""
        dtype = dtype or self.masters.dtype
        memory = self.masters.untyped_storage().data_ptr()
        buffer = self.masters.to("cpu", dtype, copy=True)  # thousands of small copies would take seconds on a busy CPU

        def on_cpu(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() == memory:
                return buffer.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            return tensor.to("cpu", dtype, copy=True)

        return {
            f"{layer.name}.{ending}": on_cpu(tensor)
            for layer in self.layers_in_file
            for ending, tensor in layer.file_tensors().items()
        }

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Load weights from a file's tensors; return the names of layers missing from the file.

        Raises ValueError if a rank or a width differs.
        """
        missing = []
        for layer in self.layers_in_file:
            kind, layer_tensors = read_layer(tensors, layer.name) or (None, {})
            if kind is type(layer) or (kind and kind.kind in layer.continues):
                layer.load(layer_tensors)
            else:
                missing.append(layer.name)
        return missing


def attach(
    plans: Iterable[LayerPlan],
    dropouts: Dropouts,
    generator: torch.Generator,
    masters_dtype: torch.dtype = torch.float32,
    *,
    perturbation: Perturbation | None = None,
    device: torch.device | None = None,
) -> AdapterNetwork:
    """Replace the planned layers with adapted ones.

    `device` is where steps compute; None: the device of the weights.
    """
    layers: list[Adapter] = []
    for plan in plans:
        parent_path, _, leaf = plan.path.rpartition(".")
        parent = plan.module.get_submodule(parent_path)
        layers.append(plan.kind(plan, getattr(parent, leaf), dropouts))
        setattr(parent, leaf, layers[-1].layer)
    assert layers, "a network without layers"
    network = _with_masters(layers, generator, masters_dtype, device or layers[0].tensors[0].copy.device)
    if perturbation:
        network.row_noise = RowNoise(perturbation, layers, network.masters.device)
    return network


@torch.no_grad()
def _with_masters(
    layers: list[Adapter], generator: torch.Generator, masters_dtype: torch.dtype, device: torch.device
) -> AdapterNetwork:
    order, last = _buffer_order(layers)
    dtype = (order or last)[0].copy.dtype
    assert all(tensor.copy.dtype == dtype for tensor in order), "modules compute in different dtypes"
    copied = sum(tensor.copy.numel() for tensor in order)
    uncopied = sum(tensor.copy.numel() for tensor in last)
    masters = torch.zeros(copied + uncopied, device=device, dtype=masters_dtype)
    compute = torch.zeros(copied, device=device, dtype=dtype)

    master_of: dict[nn.Parameter, nn.Parameter] = {}
    segments = []
    start = 0
    for scale, run in groupby(order, key=lambda tensor: tensor.scale):
        begin = start
        for tensor in run:
            copy = tensor.copy
            end = start + copy.numel()
            master_of[copy] = nn.Parameter(masters[start:end].view(copy.shape))
            copy.data = compute[start:end].view(copy.shape)
            start = end
        segments.append((slice(begin, start), scale))
    for tensor in last:
        copy = tensor.copy
        end = start + copy.numel()
        master_of[copy] = nn.Parameter(masters[start:end].view(copy.shape))
        copy.data = master_of[copy].data
        start = end

    for layer in layers:
        layer.masters = [master_of[tensor.copy] for tensor in layer.tensors]
        layer.initialize(generator)
    network = AdapterNetwork(layers, masters, compute, segments, list(master_of))
    network.refresh()
    return network


def _buffer_order(layers: list[Adapter]) -> tuple[list[TrainedTensor], list[TrainedTensor]]:
    """Return all tensors so that tensors of one scale are neighbours: first ones, second ones, ..., each by scale; and
    those without a copy."""
    most = max(len(layer.tensors) for layer in layers)
    by_place = [[layer.tensors[place] for layer in layers if place < len(layer.tensors)] for place in range(most)]
    order = [tensor for tensors in by_place for tensor in sorted(tensors, key=lambda tensor: tensor.scale)]
    return [tensor for tensor in order if not tensor.exact], [tensor for tensor in order if tensor.exact]

"""All ways to save memory that go together, and the memory and time that are expected of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from benchmarks.preset_search.step_time import MeasuredSteps, step_seconds
from benchmarks.presets import Preset
from sd_scripts.families.cards.memory_facts import MemoryFacts
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.dataset import CAPTIONS_AT_ONCE
from sd_scripts.options.memory import UNQUANTIZED
from sd_scripts.planning.memory import MemoryPlan

SEARCHED = (
    *("gradient_checkpointing", "cpu_offload_checkpointing", "compile", "compile_mode", "activation_memory_budget"),
    *("blocks_to_swap", "fp8_base", "fp8_base_unet", "quantize_base", "quantize_text_encoders"),
    *("text_encoder_batch_size", "optimizer_type", "optimizer_args", "fused_backward_pass"),
)
"""Options that the search chooses; all others are the preset's."""
FORMATS = (UNQUANTIZED, "int8_weight_only", "int8", "fp8", "nf4")
"""Formats of the base weights, the most exact first (docs/quantization.md)."""
ENCODERS: tuple[dict[str, Any], ...] = (
    {},
    {"text_encoder_batch_size": 1},
    *({"quantize_text_encoders": name, "text_encoder_batch_size": 1} for name in ("int8", "nf4")),
)
"""What makes captions fit while they are encoded, the most exact first."""
KEEPING: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "cpu_offload_checkpointing": True},
)
COMPILED: tuple[dict[str, Any], ...] = (
    {"compile": True},
    *({"compile": True, "activation_memory_budget": budget} for budget in (0.5, 0.0)),
    {"compile": True, "gradient_checkpointing": True},
)
ADAFACTOR = {
    "optimizer_type": "Adafactor",
    "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"],
}
OPTIMIZERS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "lora": ({"optimizer_type": "AdamW"}, {"optimizer_type": "AdamW8bit"}),
    "full": ({"optimizer_type": "AdamW"}, {"optimizer_type": "AdamW8bit"}, ADAFACTOR),
}
"""By method, the most exact first."""
FUSED: Mapping[str, tuple[dict[str, Any], ...]] = {"lora": ({},), "full": ({}, {"fused_backward_pass": True})}
EQUAL = 1.05
"""Times that differ by less are taken as equal, as the estimate is not better: then the more exact one comes first."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A run that is expected to fit."""

    preset: Preset
    """The run with its limit."""
    chosen: Mapping[str, Any]
    """Its values of SEARCHED."""
    plan: MemoryPlan
    seconds: float
    """Of a step, as expected."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Return the values that distinguish kinds of combinations; optimizer and swapped blocks may differ."""
        names = (
            "quantize_base",
            "fused_backward_pass",
            "gradient_checkpointing",
            "cpu_offload_checkpointing",
            "compile",
        )
        return *map(self.chosen.get, names), self.chosen.get("activation_memory_budget")

    @property
    def inexactness(self) -> int:
        """Return a number that is larger, the less exact its weights and optimizer are."""
        formats = FORMATS.index(self.chosen.get("quantize_base", UNQUANTIZED))
        of_text = FORMATS.index(self.chosen.get("quantize_text_encoders", UNQUANTIZED))
        return 100 * formats + 10 * of_text + (self.chosen.get("optimizer_type") != "AdamW")

    @property
    def compiled(self) -> bool:
        return bool(self.chosen.get("compile"))

    @property
    def run(self) -> tuple[tuple[str, str], ...]:
        """Return all its options, by which equal runs of several limits are recognized."""
        return tuple(sorted((name, str(value)) for name, value in self.preset.values.items()))


@dataclass(frozen=True, kw_only=True)
class Search:
    """Finds the combinations that fit a limit, and leaves all other options of a preset as they are."""

    preset: Preset
    measured: MeasuredSteps

    @property
    def method(self) -> str:
        return self.preset.script.method

    @cached_property
    def facts(self) -> MemoryFacts:
        card = card_of(self.preset.script.family).plan
        facts = card.memory_named(self.preset.settings()) or card.memory
        assert facts is not None
        return facts

    @cached_property
    def _problems(self) -> frozenset[str]:
        """The problems of the preset itself: it names no files."""
        return frozenset(map(str, self.preset.settings().problems()))

    def own(self) -> Combination | None:
        """Return the preset's own combination, whether it is expected to fit or not."""
        chosen = {name: self.preset.values[name] for name in SEARCHED if name in self.preset.values}
        return self._combination(self.preset, chosen)

    def ranked(self) -> list[Combination]:
        """Return the combinations that are expected to fit, the fastest first, and one of each kind."""
        found = sorted(self._fitting(), key=lambda each: (each.seconds, each.inexactness))
        best: dict[tuple[object, ...], Combination] = {}
        for each in found:
            known = best.get(each.kind)
            equal = known and each.seconds <= known.seconds * EQUAL
            if known is None or (equal and each.inexactness < known.inexactness):
                best[each.kind] = each
        left, ordered = sorted(best.values(), key=lambda each: each.seconds), []
        while left:
            first = min(
                (each for each in left if each.seconds <= left[0].seconds * EQUAL), key=lambda each: each.inexactness
            )
            ordered.append(first)
            left.remove(first)
        return ordered

    def _fitting(self) -> Iterator[Combination]:
        for options in self._choices():
            if fitting := self._smallest_swap(options):
                yield fitting

    def _choices(self) -> Iterator[dict[str, Any]]:
        """Yield all values of the options other than blocks_to_swap and those for captions."""
        has_formats = self.method == "lora" and card_of(self.preset.script.family).has("fp8")
        budgets = self.facts.activations.budgets
        compiled = [each for each in COMPILED if each.get("activation_memory_budget", 1.0) in (1.0, *budgets)]
        settings = self.preset.settings()
        plain = [each for each in KEEPING if all(map(settings.has_effect, each))]
        for keeping in (*plain, *compiled):
            for optimizer in OPTIMIZERS[self.method]:
                for fused in FUSED[self.method]:
                    for weight_format in FORMATS if has_formats else (UNQUANTIZED,):
                        options = {**keeping, **optimizer, **fused}
                        if weight_format != UNQUANTIZED:
                            options["quantize_base"] = weight_format
                        if weight_format == "int8" and not keeping.get("compile"):
                            continue  # its quantizing is many small operations
                        yield options

    def _smallest_swap(self, options: dict[str, Any]) -> Combination | None:
        """Return the combination that swaps as few blocks as needed; None if it cannot fit."""
        for captions in ENCODERS if self.method == "lora" else ENCODERS[:2]:
            chosen = {**options, **captions}
            fewest, most = 0, self.facts.most_swapped
            if self._fits({**chosen, "blocks_to_swap": 0}):
                most = 0
            elif not self._fits({**chosen, "blocks_to_swap": most}):
                continue
            while fewest < most:
                middle = (fewest + most) // 2
                if self._fits({**chosen, "blocks_to_swap": middle}):
                    most = middle
                else:
                    fewest = middle + 1
            return self._with({**chosen, "blocks_to_swap": most})
        return None

    def _fits(self, chosen: dict[str, Any]) -> bool:
        found = self._with(chosen)
        return found is not None and found.plan.in_use <= self.preset.cap

    def _with(self, chosen: dict[str, Any]) -> Combination | None:
        chosen = {name: value for name, value in chosen.items() if name != "blocks_to_swap" or value}
        others = {name: value for name, value in self.preset.values.items() if name not in SEARCHED}
        return self._combination(replace(self.preset, values={**others, **chosen}), chosen)

    def _combination(self, preset: Preset, chosen: Mapping[str, Any]) -> Combination | None:
        settings = preset.settings()
        if frozenset(map(str, settings.problems())) - self._problems:
            return None
        plan = preset.plan(CAPTIONS_AT_ONCE)
        if plan is None:
            return None
        seconds = step_seconds(settings, self.facts, self.measured)
        return Combination(preset=preset, chosen=dict(chosen), plan=plan, seconds=seconds)

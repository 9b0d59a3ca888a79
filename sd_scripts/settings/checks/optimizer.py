"""Checks of learning rates, optimizer and schedule."""

from collections.abc import Iterator

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import known_optimizer
from sd_scripts.options.optimization.schedule_table import SCHEDULES
from sd_scripts.options.spec import Findings
from sd_scripts.settings.checks.run_values import RunValues


def learning_rates_missing(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    network = values[NetworkOptions]
    rated = any(item.startswith("network_reg_lrs") for item in network.network_args)
    if not is_built_in_network(network) or rated:
        return
    rates = []
    if not network.network_train_text_encoder_only:
        rates.append(optimizer.learning_rate if network.unet_lr is None else network.unet_lr)
    if not network.network_train_unet_only:
        rates += network.text_encoder_lr or [optimizer.learning_rate]
    if rates and not any(rates):
        yield "learning_rate", "all learning rates are 0, so nothing would be trained; set one above 0"


def warmup_unsupported_by_schedule(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    schedule = values[LrSchedulerOptions]
    if not schedule.lr_warmup_steps or known_optimizer(optimizer.optimizer_type).schedule_free:
        return
    name = schedule.lr_scheduler_type or schedule.lr_scheduler.partition(":")[0]
    if optimizer.sets_its_own_rate:
        yield "lr_warmup_steps", "Adafactor with relative_step has no warm-up; set it to 0 or add relative_step=False"
    elif schedule.lr_scheduler_type or not (SCHEDULES[name].has_warmup or SCHEDULES[name].ignores_warmup):
        yield (
            "lr_warmup_steps",
            f"{name} has no warm-up; set lr_scheduler = constant_with_warmup, or lr_warmup_steps = 0",
        )


def adafactor_schedule_without_adafactor(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    schedule = values[LrSchedulerOptions]
    adafactor = schedule.lr_scheduler.partition(":")[0] == "adafactor" and not schedule.lr_scheduler_type
    if adafactor and not optimizer.sets_its_own_rate:
        yield (
            "lr_scheduler",
            "adafactor needs optimizer_type = Adafactor with relative_step; set lr_scheduler = constant",
        )


def one_learning_rate_for_partitioned_weights(values: RunValues) -> Findings:
    if not values.get(FullOptions):
        return
    optimizer = values[OptimizerOptions]
    fused = values[FusedOptions]
    memory = values.get(MemoryOptions)
    partitioned = fused.chosen or ("blocks_to_swap" if memory and memory.blocks_to_swap else "")
    if partitioned and known_optimizer(optimizer.optimizer_type).one_rate:
        yield (
            "optimizer_type",
            f"{optimizer.optimizer_type} derives one learning rate from all weights together, which {partitioned} "
            f"never has in memory at the same time; choose another optimizer, or turn {partitioned} off",
        )


def several_rates_for_an_optimizer_of_one(values: RunValues) -> Findings:
    """Refuse what surely gives weights different learning rates. What depends on the layers of the model, or on an
    external network, is found when the optimizer is made."""
    optimizer = values[OptimizerOptions]
    network = values.get(NetworkOptions)
    full = values.get(FullOptions)
    name = optimizer.optimizer_type
    rates = [*_learning_rates(optimizer, network, full, values.card)]
    if not known_optimizer(name).one_rate:
        return
    if len({rate for _, rate in rates} - {0.0}) > 1:
        listed = ", ".join(f"{option} {rate:g}" for option, rate in rates)
        yield (
            next(option for option, rate in reversed(rates) if rate not in (0.0, optimizer.learning_rate)),
            f"denoiser and text encoders get different learning rates ({listed}), but {name} uses a single "
            "one; leave it unset, or choose another optimizer",
        )
    remedy = f"but {name} uses a single one; remove it, or choose another optimizer"
    if network:
        for key in network.arguments_that_vary_the_rate(with_text=not network.network_train_unet_only):
            yield "network_args", f"{key} gives weights different learning rates, {remedy}"
    if full and len({*full.block_rates} - {0.0}) > 1:
        yield "block_lr", f"gives blocks different learning rates, {remedy}"


def _learning_rates(
    optimizer: OptimizerOptions, network: NetworkOptions | None, full: FullOptions | None, card: FamilyCard
) -> Iterator[tuple[str, float]]:
    """Yield the learning rate of the denoiser and of each text encoder that is surely trained, with its option."""
    base = optimizer.learning_rate
    if network and is_built_in_network(network):
        preset = network.built_in.preset
        if not network.network_train_text_encoder_only:
            yield "unet_lr", base if network.unet_lr is None else network.unet_lr
        if not network.network_train_unet_only and (not preset or preset.text_encoders):
            encoders = sum(component.name.startswith("text_encoder") for component in card.files.components)
            certain = 1 if card.has("partial_text_cache") else encoders  # such a family trains others only on request
            yield from (("text_encoder_lr", network.rate_of_encoder(number, base)) for number in range(certain))
    if full:
        blocks = full.block_rates if card.has("block_rates") else []
        yield ("block_lr", max(blocks)) if blocks else ("learning_rate", base)
        if full.train_text_encoder and card.has("trains_text"):
            yield from ((f"learning_rate_te{number + 1}", full.rate_of_encoder(number, base)) for number in (0, 1))


def model_learning_rates_missing(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    full = values[FullOptions]
    encoders = (full.learning_rate_te1, full.learning_rate_te2) if full.train_text_encoder else ()
    if not any((optimizer.learning_rate, *encoders, *full.block_rates)):
        yield "learning_rate", "all learning rates are 0, so nothing would be trained; set one above 0"


def ignored_warmup(values: RunValues) -> Findings:
    schedule = values[LrSchedulerOptions]
    known = SCHEDULES.get(schedule.lr_scheduler)
    if schedule.lr_warmup_steps and known and known.ignores_warmup and not schedule.lr_scheduler_type:
        yield "lr_warmup_steps", f"has no effect with lr_scheduler = {schedule.lr_scheduler}"


def lora_learning_rate(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    network = values[NetworkOptions]
    rates = [optimizer.learning_rate, network.unet_lr, *network.text_encoder_lr]
    if known_optimizer(optimizer.optimizer_type).finds_its_rate:
        if all(rate is None or rate < 0.1 for rate in rates):
            yield "learning_rate", f"{optimizer.optimizer_type} determines the rate itself; use 1 here"
    elif optimizer.sets_its_own_rate:
        return
    elif optimizer.learning_rate == 2e-06 and network.unet_lr is None and not network.text_encoder_lr:
        yield "learning_rate", "not set, so 2e-06 is used; 1e-4 is usual for a LoRA"


def embedding_learning_rate(values: RunValues) -> Findings:
    if not values.get(EmbeddingOptions):
        return
    optimizer = values[OptimizerOptions]
    network = values.get(NetworkOptions)
    if network is None and optimizer.learning_rate == 2e-06 and not optimizer.sets_its_own_rate:
        yield "learning_rate", "not set, so 2e-06 is used; 5e-4 to 5e-3 is usual for an embedding"


HIGH = 5e-5
"""Above this learning rate full training damages the model; LoRAs train at 1e-4."""


def full_learning_rate(values: RunValues) -> Findings:
    if not values.get(FullOptions):
        return
    optimizer = values[OptimizerOptions]
    small = known_optimizer(optimizer.optimizer_type).small_rates
    if small and optimizer.learning_rate > HIGH and not optimizer.sets_its_own_rate:
        yield (
            "learning_rate",
            f"{optimizer.learning_rate:g} is high for full training and soon damages the model; 1e-6 to 1e-5 is usual",
        )


def te_lr_without_te_training(values: RunValues) -> Findings:
    full = values[FullOptions]
    for name in ("learning_rate_te1", "learning_rate_te2"):
        if getattr(full, name) and not full.train_text_encoder:
            yield name, "has no effect without train_text_encoder"


def schedule_without_effect(values: RunValues) -> Findings:
    optimizer = values[OptimizerOptions]
    schedule = values[LrSchedulerOptions]
    if known_optimizer(optimizer.optimizer_type).schedule_free:
        for name, without_effect in (("lr_scheduler", "constant"), ("lr_warmup_steps", 0)):
            if getattr(schedule, name) != without_effect:
                yield name, f"has no effect: {optimizer.optimizer_type} uses no schedule"
    elif optimizer.sets_its_own_rate and schedule.lr_scheduler.partition(":")[0] not in ("adafactor", "constant"):
        yield "lr_scheduler", "has no effect: Adafactor sets its own rate; add relative_step=False to optimizer_args"


def lr_decay_without_effect(values: RunValues) -> Findings:
    schedule = values[LrSchedulerOptions]
    if schedule.lr_decay_steps and schedule.lr_scheduler != "warmup_stable_decay":
        yield "lr_decay_steps", f"has no effect with lr_scheduler = {schedule.lr_scheduler}"

"""Find options of different groups that conflict or have no effect together.

The parameters of each check are the groups it compares; a check is skipped if the run lacks one of them. A group that
may be missing is annotated `| None`. A check may also take the FamilyCard. Each family adds checks of its own.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from types import NoneType
from typing import Any, get_args

from sd_scripts.families.card import FamilyCard
from sd_scripts.families.registry import card_by_network, card_of, is_built_in_network
from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.compile import (
    MORE,
    PARTITIONED,
    CompileMoreOptions,
    CompileOptions,
)
from sd_scripts.options.dataset import (
    NO_SMALL_BUCKETS,
    VARY_CAPTIONS,
    VARY_IMAGES,
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    ControlOptions,
    DatasetOptions,
    ValidationOptions,
    rounded_steps,
)
from sd_scripts.options.embedding import EmbeddingOptions
from sd_scripts.options.flow import FlowOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.loss import LossOptions, NoiseOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.network_args import LARGEST_RANK, problems
from sd_scripts.options.network_types import LYCORIS, MODULE, read_items
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.optimizer_table import known_optimizer
from sd_scripts.options.recording import keeps_from_recording
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.saving import HuggingFaceOptions, SavingOptions
from sd_scripts.options.schedule_table import SCHEDULES
from sd_scripts.options.spec import Filled, Findings, until_wrong
from sd_scripts.options.training import TrainingOptions


def problems_between(filled: Filled, family: str) -> Findings:
    """Return every conflict between groups that prevents the run from starting."""
    return _ask((*PROBLEMS, *card_of(family).problems), filled, family)


def remarks_between(filled: Filled, family: str) -> Findings:
    """Return warnings to show before the start: choices without effect, or with one that was hardly meant."""
    return _ask((*REMARKS, *card_of(family).remarks), filled, family)


def _ask(checks: Iterable[Callable[..., Findings]], filled: Filled, family: str) -> Iterator[tuple[str, str]]:
    known: Mapping[type, object] = {**filled, FamilyCard: card_of(family)}
    for check in checks:
        wanted = _parameter_kinds(check)
        if all(kind in known or NoneType in get_args(kind) for kind in wanted):
            asked = [known.get((*get_args(kind), kind)[0]) for kind in wanted]
            yield from until_wrong(partial(check, *asked))


@cache  # the page asks after every change
def _parameter_kinds(check: Callable[..., Findings]) -> list[Any]:
    return [parameter.annotation for parameter in inspect.signature(check).parameters.values()]


def training_size(data: DatasetOptions, buckets: BucketOptions) -> Findings:
    if data.dataset_config:
        return
    if not data.resolution:
        yield "resolution", "not set; 1024 suits current models"
        return
    sides = [int(side) for side in data.resolution.split(",") if is_whole_number(side.strip())]
    steps = rounded_steps(buckets.bucket_reso_steps)
    if not buckets.enable_bucket or buckets.bucket_no_upscale or not sides:  # sizes then come from the images
        return
    if min(sides) < buckets.min_bucket_reso // steps * steps:
        yield "min_bucket_reso", f"{buckets.min_bucket_reso} is above resolution = {data.resolution}; lower it"
    if max(sides) > -(-buckets.max_bucket_reso // steps) * steps:
        yield "max_bucket_reso", f"{buckets.max_bucket_reso} is below resolution = {data.resolution}; raise it"


def equal_tokens_without_upscale(data: DatasetOptions, buckets: BucketOptions) -> Findings:
    """A dataset_config may set either option for each dataset; the datasets themselves are checked then."""
    if buckets.enable_bucket and buckets.equal_token_buckets and buckets.bucket_no_upscale and not data.dataset_config:
        yield "bucket_no_upscale", NO_SMALL_BUCKETS


def cached_latents_with_augmentation(cache: CacheOptions, augment: AugmentOptions) -> Findings:
    if not cache.caches_latents:
        return
    for name in VARY_IMAGES:
        if getattr(augment, name):
            yield name, f"changes the image each time, so latents cannot be cached; turn off {name} or cache_latents"


def cached_captions_with_changes(cache: CacheOptions, captions: CaptionOptions) -> Findings:
    if not cache.caches_text:
        return
    for name in VARY_CAPTIONS:
        if getattr(captions, name):
            yield name, "changes captions at every step, so they cannot be cached; turn it off or disable the cache"


def text_encoder_training_conflicts(
    cache: CacheOptions, network: NetworkOptions, optimizer: OptimizerOptions, card: FamilyCard
) -> Findings:
    trained = any(network.rate_of_encoder(number, optimizer.learning_rate) for number in (0, 1))
    if cache.caches_text and trained and not network.network_train_unet_only and not card.has("partial_text_cache"):
        yield (
            "cache_text_encoder_outputs",
            "text encoders cannot be trained from cached outputs; set network_train_unet_only or turn the cache off",
        )


def learning_rates_missing(optimizer: OptimizerOptions, network: NetworkOptions) -> Findings:
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


def v_prediction_losses(model: ModelOptions, loss: LossOptions, card: FamilyCard) -> Findings:
    if not card.has("noise_schedule"):  # without effect
        return
    if loss.scale_v_pred_loss_like_noise_pred and not model.v_parameterization:
        yield (
            "scale_v_pred_loss_like_noise_pred",
            "works only for v-prediction models; set v_parameterization or turn it off",
        )
    if loss.v_pred_like_loss and model.v_parameterization:
        yield "v_pred_like_loss", "works only for models that predict noise; turn it or v_parameterization off"


def warmup_unsupported_by_schedule(optimizer: OptimizerOptions, schedule: LrSchedulerOptions) -> Findings:
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


def adafactor_schedule_without_adafactor(optimizer: OptimizerOptions, schedule: LrSchedulerOptions) -> Findings:
    adafactor = schedule.lr_scheduler.partition(":")[0] == "adafactor" and not schedule.lr_scheduler_type
    if adafactor and not optimizer.sets_its_own_rate:
        yield (
            "lr_scheduler",
            "adafactor needs optimizer_type = Adafactor with relative_step; set lr_scheduler = constant",
        )


def fullgraph_with_external_network(compiled: CompileOptions, network: NetworkOptions) -> Findings:
    if compiled.compile and compiled.compile_fullgraph and not is_built_in_network(network):
        yield (
            "compile_fullgraph",
            f"{network.network_module} adds code to the model that may not compile as one graph; turn it off",
        )


def snr_huber_schedule_without_noise_schedule(card: FamilyCard, loss: LossOptions) -> Findings:
    if card.has("noise_schedule"):
        return
    if loss.loss_type in ("huber", "smooth_l1") and loss.huber_schedule == "snr":
        yield (
            "huber_schedule",
            "snr follows Stable Diffusion's noise schedule; set huber_schedule = constant or exponential",
        )


def fp8_compute_without_bf16(memory: MemoryOptions, training: TrainingOptions) -> Findings:
    if memory.fp8_compute and training.mixed_precision != "bf16":
        yield "fp8_compute", f"needs mixed_precision = bf16, not {training.mixed_precision}"


def weights_quantized_twice(memory: MemoryOptions, training: TrainingOptions, network: NetworkOptions) -> Findings:
    flag = "fp8_base" if training.fp8_base else "fp8_base_unet" if training.fp8_base_unet else ""
    if flag and memory.chosen(memory.quantize_base) not in ("", "fp8"):
        yield (
            "quantize_base",
            f"{memory.quantize_base} conflicts with {flag}, which holds the same weights in fp8; turn {flag} off",
        )
    in_fp8 = training.fp8_base and not training.fp8_base_unet
    if in_fp8 and memory.chosen(memory.quantize_text_encoders) not in ("", "fp8"):
        yield (
            "quantize_text_encoders",
            f"{memory.quantize_text_encoders} conflicts with fp8_base, which holds the text encoders in fp8 too; turn "
            "fp8_base off and fp8_base_unet on",
        )


def built_in_network_conflicts(network: NetworkOptions) -> Findings:
    if not is_built_in_network(network):
        return
    for problem in problems(network.built_in.arguments):
        yield "network_args", problem.removeprefix("network_args: ")
    # for LoKr, a larger rank means whole matrices
    if network.built_in.adapter != "lokr" and (network.network_dim or 0) > LARGEST_RANK:
        yield (
            "network_dim",
            f"{network.network_dim} is above {LARGEST_RANK}, more than any layer has; 8 to 32 suits most. Only LoKr "
            "accepts a larger number, which means whole matrices",
        )
    plain = network.built_in.adapter == "lora" and not network.algorithm and not network.dora_wd
    if network.lora_init != "default" and not plain:
        yield "lora_init", f"{network.lora_init} is for plain LoRA; leave it unset"


def network_type_given_twice(network: NetworkOptions) -> Findings:
    if not network.network_type:
        return
    if network.module == LYCORIS or MODULE.fullmatch(network.module) or not is_built_in_network(network):
        yield (
            "network_type",
            f"network_module = {network.network_module} decides what is trained; leave one of the two unset",
        )
    elif "adapter" in read_items(network.network_args):
        yield "network_type", "adapter in network_args decides what is trained; leave one of the two unset"


def _arguments_that_train_the_base(network: NetworkOptions) -> list[str]:
    """Return the network_args with which an external network trains weights of the base model, or reads them."""
    if is_built_in_network(network):
        return []
    given = (item.replace(" ", "").lower() for item in network.network_args)
    return [arg for arg in given if arg in ("algo=full", "dora_wd=true", "weight_decompose=true")]


def swapped_adapter_conflicts(memory: MemoryOptions, network: NetworkOptions) -> Findings:
    """Refuse LyCORIS networks that start from the base weights, which swapped blocks do not have on the device."""
    for arg in _arguments_that_train_the_base(network) if memory.blocks_to_swap else ():
        yield (
            "blocks_to_swap",
            f"{network.network_module} with {arg} trains the weights of the base model, so blocks cannot be "
            "swapped; set blocks_to_swap = 0 or choose another network",
        )


def quantized_adapter_conflicts(memory: MemoryOptions, training: TrainingOptions, network: NetworkOptions) -> Findings:
    """Refuse LyCORIS networks that start from the base weights, of which quantized layers have no full precision."""
    flags = {"fp8_base": training.fp8_base, "fp8_base_unet": training.fp8_base_unet, "fp8_compute": memory.fp8_compute}
    formats = {name: memory.chosen(getattr(memory, name)) for name in ("quantize_base", "quantize_text_encoders")}
    name = next((name for name, on in {**formats, **flags}.items() if on), "")
    for arg in _arguments_that_train_the_base(network) if name else ():
        yield (
            name,
            f"{network.network_module} with {arg} trains the weights of the base model, so they cannot be quantized; "
            + (f"set {name} = none" if name in formats else f"turn {name} off")
            + " or choose another network",
        )


def network_of_another_family(network: NetworkOptions, card: FamilyCard) -> Findings:
    other = card_by_network(network.network_module or "")
    if other and not card.trains(other.name):
        yield (
            "network_module",
            f"{network.network_module} makes LoRAs for {other.title}, but this run trains {card.title}; leave it "
            f"unset, or train {other.title}",
        )


def fused_backward_conflicts(fused: FusedOptions, training: TrainingOptions, full: FullOptions) -> Findings:
    if not (name := fused.chosen):
        return
    if training.gradient_accumulation_steps > 1:
        yield name, "frees gradients at once, so they cannot be accumulated; set gradient_accumulation_steps = 1"
    if training.mixed_precision == "fp16":
        yield name, "does not support the loss scaling of fp16; set mixed_precision = bf16"


def compile_check_with_fused_backward(
    more: CompileMoreOptions, compiled: CompileOptions, fused: FusedOptions, full: FullOptions
) -> Findings:
    if more.checks(compiled) and fused.chosen:
        yield (
            "compile_check_every",
            f"{fused.chosen} updates weights within backward, so a step cannot also run eagerly; turn {fused.chosen} "
            "off, or set compile_check_every = 0",
        )


def compile_check_with_random_layers(
    more: CompileMoreOptions, compiled: CompileOptions, network: NetworkOptions
) -> Findings:
    """Compiled code draws other random numbers than eager code from the same seed."""
    if more.checks(compiled) and network.draws:
        yield (
            "compile_check_every",
            f"{network.draws} draws other random numbers when compiled, so results cannot be compared; remove it, or "
            "set compile_check_every = 0",
        )


def swapped_model_conflicts(
    memory: MemoryOptions, training: TrainingOptions, fused: FusedOptions, full: FullOptions
) -> Findings:
    if memory.blocks_to_swap and not training.full_bf16:
        yield "blocks_to_swap", "trained blocks can be swapped only in bf16; set full_bf16 and mixed_precision = bf16"
    if memory.blocks_to_swap and fused.fused_optimizer_groups:
        yield (
            "fused_optimizer_groups",
            "updates weights of several blocks at once, which blocks_to_swap never has on the GPU together; set "
            "fused_backward_pass instead",
        )


def one_learning_rate_for_partitioned_weights(
    optimizer: OptimizerOptions, fused: FusedOptions, full: FullOptions, memory: MemoryOptions | None
) -> Findings:
    partitioned = fused.chosen or ("blocks_to_swap" if memory and memory.blocks_to_swap else "")
    if partitioned and known_optimizer(optimizer.optimizer_type).one_rate:
        yield (
            "optimizer_type",
            f"{optimizer.optimizer_type} finds one learning rate from all weights together, which {partitioned} never "
            f"has in memory at once; choose another optimizer, or turn {partitioned} off",
        )


def several_rates_for_an_optimizer_of_one(
    optimizer: OptimizerOptions, network: NetworkOptions | None, full: FullOptions | None, card: FamilyCard
) -> Findings:
    """Refuse what surely gives weights different learning rates. What depends on the layers of the model, or on an
    external network, is found when the optimizer is made."""
    name, rates = optimizer.optimizer_type, [*_learning_rates(optimizer, network, full, card)]
    if not known_optimizer(name).one_rate:
        return
    if len({rate for _, rate in rates} - {0.0}) > 1:
        listed = ", ".join(f"{option} {rate:g}" for option, rate in rates)
        yield (
            next(option for option, rate in reversed(rates) if rate not in (0.0, optimizer.learning_rate)),
            f"denoiser and text encoders get different learning rates ({listed}), but {name} finds one for all "
            "weights; leave it unset, or choose another optimizer",
        )
    remedy = f"but {name} finds one for all weights; remove it, or choose another optimizer"
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


def text_encoders_trained_and_cached(cache: CacheOptions, full: FullOptions) -> Findings:
    if full.train_text_encoder and cache.caches_text:
        yield (
            "cache_text_encoder_outputs",
            "text encoders cannot be trained from cached outputs; turn off train_text_encoder or the cache",
        )


def model_learning_rates_missing(optimizer: OptimizerOptions, full: FullOptions) -> Findings:
    encoders = (full.learning_rate_te1, full.learning_rate_te2) if full.train_text_encoder else ()
    if not any((optimizer.learning_rate, *encoders, *full.block_rates)):
        yield "learning_rate", "all learning rates are 0, so nothing would be trained; set one above 0"


def token_missing(embedding: EmbeddingOptions, network: NetworkOptions | None, full: FullOptions | None) -> Findings:
    if network is None and full is None and not embedding.token_string:
        yield "token_string", "not set; write the new word that the captions contain, such as mycat"


def embedding_learning_rate_missing(
    embedding: EmbeddingOptions, optimizer: OptimizerOptions, network: NetworkOptions | None
) -> Findings:
    if network is None and not optimizer.learning_rate:
        yield "learning_rate", "is 0, so nothing would be trained; set it above 0"


def cached_captions_with_new_token(cache: CacheOptions, embedding: EmbeddingOptions, card: FamilyCard) -> Findings:
    if cache.caches_text and embedding.token_string and card.has("learns_embeddings"):
        yield (
            "cache_text_encoder_outputs",
            "captions with a token that is being trained change at every step, so they cannot be cached; turn it off",
        )


def new_token_with_external_network(embedding: EmbeddingOptions, network: NetworkOptions, card: FamilyCard) -> Findings:
    if embedding.token_string and not is_built_in_network(network) and card.has("learns_embeddings"):
        yield (
            "token_string",
            "embeddings cannot be trained together with an external network; leave network_module unset, or train the "
            "embedding first and alone",
        )


def validation_takes_all_images(validation: ValidationOptions, data: DatasetOptions) -> Findings:
    if validation.validation_split == 1 and not data.dataset_config:
        yield (
            "validation_split",
            "1 keeps every image out of training; set less, or describe a dataset for validation alone in a "
            "dataset_config",
        )


PROBLEMS = (
    built_in_network_conflicts,
    network_type_given_twice,
    validation_takes_all_images,
    training_size,
    equal_tokens_without_upscale,
    cached_latents_with_augmentation,
    cached_captions_with_changes,
    text_encoder_training_conflicts,
    learning_rates_missing,
    v_prediction_losses,
    warmup_unsupported_by_schedule,
    adafactor_schedule_without_adafactor,
    fullgraph_with_external_network,
    fp8_compute_without_bf16,
    weights_quantized_twice,
    swapped_adapter_conflicts,
    quantized_adapter_conflicts,
    snr_huber_schedule_without_noise_schedule,
    network_of_another_family,
    fused_backward_conflicts,
    compile_check_with_fused_backward,
    compile_check_with_random_layers,
    swapped_model_conflicts,
    one_learning_rate_for_partitioned_weights,
    several_rates_for_an_optimizer_of_one,
    text_encoders_trained_and_cached,
    model_learning_rates_missing,
    token_missing,
    embedding_learning_rate_missing,
    cached_captions_with_new_token,
    new_token_with_external_network,
)


def dataset_given_twice(data: DatasetOptions) -> Findings:
    for name in ("train_data_dir", "reg_data_dir", "in_json", "conditioning_data_dir", "num_repeats"):
        if data.dataset_config and getattr(data, name):
            yield name, "has no effect: dataset_config describes the data"


def control_directory_of_other_data(data: DatasetOptions, controls: ControlOptions) -> Findings:
    if controls.control_directory and data.dataset_config:
        yield "control_directory", "has no effect: dataset_config names it for each of its subsets"
    elif controls.control_directory and data.in_json:
        yield "control_directory", "has no effect: the metadata file names control images in control_path"


def equal_tokens_without_buckets(data: DatasetOptions, buckets: BucketOptions) -> Findings:
    if buckets.equal_token_buckets and not buckets.enable_bucket and not data.dataset_config:
        yield "equal_token_buckets", "has no effect without enable_bucket"


def num_repeats_with_metadata_file(data: DatasetOptions) -> Findings:
    if data.in_json and data.num_repeats is not None and not data.dataset_config:
        yield "num_repeats", "has no effect with in_json; set dataset_repeats instead"


def masks_missing(data: DatasetOptions, augment: AugmentOptions) -> Findings:
    if data.conditioning_data_dir and not data.dataset_config and not augment.masked_loss:
        yield "conditioning_data_dir", "has no effect without masked_loss"
    if augment.masked_loss and not (data.conditioning_data_dir or data.dataset_config or augment.alpha_mask):
        yield "masked_loss", "has no effect without masks; set conditioning_data_dir to their folder"


def persistent_workers_without_workers(data: DatasetOptions) -> Findings:
    if data.persistent_data_loader_workers and data.max_data_loader_n_workers == 0:
        yield "persistent_data_loader_workers", "has no effect with max_data_loader_n_workers = 0"


def validation_without_images(validation: ValidationOptions, data: DatasetOptions) -> Findings:
    if validation.validation_split or data.dataset_config:
        return
    for name in ("validate_every_n_steps", "validate_every_n_epochs", "max_validation_steps"):
        if getattr(validation, name) is not None:
            yield name, "has no effect while validation_split is 0"


def ignored_warmup(schedule: LrSchedulerOptions) -> Findings:
    known = SCHEDULES.get(schedule.lr_scheduler)
    if schedule.lr_warmup_steps and known and known.ignores_warmup and not schedule.lr_scheduler_type:
        yield "lr_warmup_steps", f"has no effect with lr_scheduler = {schedule.lr_scheduler}"


def zero_terminal_snr_without_v_prediction(model: ModelOptions, noise: NoiseOptions) -> Findings:
    if noise.zero_terminal_snr and not model.v_parameterization:
        yield (
            "zero_terminal_snr",
            "is meant for v-prediction models; without v_parameterization the last timestep learns nothing",
        )


def random_strength_without_noise(noise: NoiseOptions) -> Findings:
    if noise.noise_offset_random_strength and not noise.noise_offset:
        yield "noise_offset_random_strength", "has no effect without noise_offset"
    if noise.ip_noise_gamma_random_strength and not noise.ip_noise_gamma:
        yield "ip_noise_gamma_random_strength", "has no effect without ip_noise_gamma"


def lora_learning_rate(optimizer: OptimizerOptions, network: NetworkOptions) -> Findings:
    rates = [optimizer.learning_rate, network.unet_lr, *network.text_encoder_lr]
    if known_optimizer(optimizer.optimizer_type).finds_its_rate:
        if all(rate is None or rate < 0.1 for rate in rates):
            yield "learning_rate", f"{optimizer.optimizer_type} finds the rate itself and takes 1 here"
    elif optimizer.sets_its_own_rate:
        return
    elif optimizer.learning_rate == 2e-06 and network.unet_lr is None and not network.text_encoder_lr:
        yield "learning_rate", "not set, so 2e-06 is used; 1e-4 is usual for a LoRA"


def embedding_learning_rate(
    optimizer: OptimizerOptions, embedding: EmbeddingOptions, network: NetworkOptions | None
) -> Findings:
    if network is None and optimizer.learning_rate == 2e-06 and not optimizer.sets_its_own_rate:
        yield "learning_rate", "not set, so 2e-06 is used; 5e-4 to 5e-3 is usual for an embedding"


def embedding_options_without_token(embedding: EmbeddingOptions) -> Findings:
    for name in embedding.without_token():
        yield name, "has no effect without token_string"


def embedding_named_otherwise(
    saving: SavingOptions, embedding: EmbeddingOptions, network: NetworkOptions | None
) -> Findings:
    if network is None and embedding.token_string and not saving.output_name:
        yield (
            "output_name",
            f"not set, so the file is called last; set it to {embedding.token_string}, because programs call an "
            "embedding by the name of its file",
        )


HIGH = 5e-5
"""Above this learning rate full training damages the model; LoRAs train at 1e-4."""


def full_learning_rate(optimizer: OptimizerOptions, full: FullOptions) -> Findings:
    small = known_optimizer(optimizer.optimizer_type).small_rates
    if small and optimizer.learning_rate > HIGH and not optimizer.sets_its_own_rate:
        yield (
            "learning_rate",
            f"{optimizer.learning_rate:g} is high for full training and soon damages the model; 1e-6 to 1e-5 is usual",
        )


def te_lr_without_te_training(full: FullOptions) -> Findings:
    for name in ("learning_rate_te1", "learning_rate_te2"):
        if getattr(full, name) and not full.train_text_encoder:
            yield name, "has no effect without train_text_encoder"


def schedule_without_effect(optimizer: OptimizerOptions, schedule: LrSchedulerOptions) -> Findings:
    if known_optimizer(optimizer.optimizer_type).schedule_free:
        for name, without_effect in (("lr_scheduler", "constant"), ("lr_warmup_steps", 0)):
            if getattr(schedule, name) != without_effect:
                yield name, f"has no effect: {optimizer.optimizer_type} uses no schedule"
    elif optimizer.sets_its_own_rate and schedule.lr_scheduler.partition(":")[0] not in ("adafactor", "constant"):
        yield "lr_scheduler", "has no effect: Adafactor sets its own rate; add relative_step=False to optimizer_args"


def lr_decay_without_effect(schedule: LrSchedulerOptions) -> Findings:
    if schedule.lr_decay_steps and schedule.lr_scheduler != "warmup_stable_decay":
        yield "lr_decay_steps", f"has no effect with lr_scheduler = {schedule.lr_scheduler}"


def samples_without_prompts(sample: SampleOptions) -> Findings:
    if sample.sample_prompts:
        if not (sample.sample_every_n_steps or sample.sample_every_n_epochs or sample.sample_at_first):
            yield (
                "sample_prompts",
                "generates no samples on its own; set sample_every_n_steps or sample_every_n_epochs",
            )
        return
    for name in ("sample_every_n_steps", "sample_every_n_epochs", "sample_at_first"):
        if getattr(sample, name):
            yield name, "has no effect without sample_prompts"


def keep_last_without_saving(saving: SavingOptions) -> Findings:
    if saving.save_last_n_steps and not saving.save_every_n_steps:
        yield "save_last_n_steps", "has no effect without save_every_n_steps"
    if saving.save_last_n_epochs and not (saving.save_every_n_epochs or saving.save_n_epoch_ratio):
        yield "save_last_n_epochs", "has no effect without save_every_n_epochs"


def lr_without_training(network: NetworkOptions) -> Findings:
    if network.network_train_unet_only and network.text_encoder_lr:
        yield "text_encoder_lr", "has no effect with network_train_unet_only"
    if network.network_train_text_encoder_only and network.unet_lr is not None:
        yield "unet_lr", "has no effect with network_train_text_encoder_only"


READ_WITH: dict[str, tuple[str, Callable[[str], bool]]] = {
    "discrete_flow_shift": ("timestep_sampling", lambda how: how in ("sigma", "shift")),
    "sigmoid_scale": ("timestep_sampling", lambda how: how not in ("sigma", "uniform")),
    "logit_mean": ("weighting_scheme", lambda scheme: scheme == "logit_normal"),
    "logit_std": ("weighting_scheme", lambda scheme: scheme == "logit_normal"),
    "mode_scale": ("weighting_scheme", lambda scheme: scheme == "mode"),
}
"""Numeric option of timestep sampling -> the choice that decides whether it is read, and the values that read it."""


def timestep_options_without_effect(objective: FlowOptions) -> Findings:
    for name, (choice, reads) in READ_WITH.items():
        chosen = getattr(objective, choice)
        if not reads(chosen) and getattr(objective, name) != getattr(FlowOptions, name):
            yield name, f"has no effect with {choice} = {chosen}"
    how, scheme = objective.timestep_sampling, objective.weighting_scheme
    if scheme in ("logit_normal", "mode") and how != "sigma":
        yield "weighting_scheme", f"{scheme} has no effect with timestep_sampling = {how}; it needs sigma"
    if scheme in ("sigma_sqrt", "cosmap") and objective.model_prediction_type != "sigma_scaled":
        yield (
            "weighting_scheme",
            f"{scheme} has no effect with model_prediction_type = {objective.model_prediction_type}; "
            "it needs sigma_scaled",
        )


def cpu_offload_checkpointing_conflicts(training: TrainingOptions, compiled: CompileOptions) -> Findings:
    if not training.cpu_offload_checkpointing:
        return
    if not training.gradient_checkpointing:
        yield "cpu_offload_checkpointing", "has no effect without gradient_checkpointing"
    elif compiled.compile:
        yield (
            "cpu_offload_checkpointing",
            "moves activations between compiled blocks, outside their graphs; turn it off with compile unless memory "
            "runs out",
        )


def steps_that_are_not_recorded(
    training: TrainingOptions,
    compiled: CompileOptions,
    memory: MemoryOptions | None,
    fused: FusedOptions | None,
    network: NetworkOptions | None,
) -> Findings:
    chosen = compiled.cuda_graphs_from or ("compile_backend" if compiled.compile_backend == "cudagraphs" else "")
    groups = (training, memory, fused, network)
    why = keeps_from_recording({type(group): group for group in groups if group is not None})
    if not (compiled.compile and chosen and why):
        return
    instead = "blocks replay graphs of their own, which takes longer"
    if training.gradient_checkpointing and compiled.cuda_graphs_from:
        instead = "it runs compiled without CUDA graphs"
    yield chosen, f"a step cannot be recorded as a CUDA graph with {why}, so {instead}"


def activation_memory_budget_without_effect(
    more: CompileMoreOptions, compiled: CompileOptions, training: TrainingOptions
) -> Findings:
    if more.activation_memory_budget == 1.0:
        return
    if not compiled.compile:
        yield "activation_memory_budget", "has no effect without compile; turn compile on"
    elif compiled.compile_backend not in PARTITIONED:
        yield (
            "activation_memory_budget",
            f"has no effect with compile_backend = {compiled.compile_backend}; set compile_backend = inductor",
        )
    elif training.gradient_checkpointing:
        yield (
            "activation_memory_budget",
            "gradient_checkpointing already keeps only the inputs of each block, so both together save hardly more "
            "than it alone; turn one of them off",
        )


def steps_replaced_by_epochs(training: TrainingOptions) -> Findings:
    if training.max_train_epochs and training.max_train_steps != TrainingOptions.max_train_steps:
        yield (
            "max_train_steps",
            f"has no effect with max_train_epochs = {training.max_train_epochs}; remove one of them",
        )


def compile_mode_with_auto(compiled: CompileOptions) -> Findings:
    if compiled.compile and compiled.compile_auto and compiled.compile_mode != "default":
        yield "compile_mode", "has no effect with compile_auto, which chooses it; turn compile_auto off to keep it"


def compile_without_effect(
    more: CompileMoreOptions, compiled: CompileOptions, cache: CacheOptions, network: NetworkOptions | None
) -> Findings:
    if compiled.compile_backend == "cudagraphs":
        for name in MORE:
            if getattr(more, name):
                yield name, "has no effect with compile_backend = cudagraphs; set compile_backend = inductor"
        return
    learns = network is not None and not network.network_train_unet_only
    if more.compile_text_encoder and cache.caches_text and not learns:
        yield "compile_text_encoder", "has no effect: captions are cached and no text encoder is trained"
    if more.compile_vae and cache.caches_latents:
        yield (
            "compile_vae",
            "latents are cached, so the VAE only runs before the first step; worth it for many images only",
        )


def int8_without_compile(memory: MemoryOptions, compiled: CompileOptions, network: NetworkOptions) -> Findings:
    if memory.quantize_base == "int8" and not compiled.compile:
        yield (
            "quantize_base",
            "int8 quantizes activations too, in many small operations without compile; turn compile on, or set "
            "int8_weight_only",
        )


def float32_norms_without_effect(cuda: CudaOptions, training: TrainingOptions, compiled: CompileOptions) -> Findings:
    if not cuda.float32_norms:
        return
    if compiled.compile:
        yield "float32_norms", "has no effect with compile, which rounds once anyway"
    elif training.mixed_precision == "no":
        yield "float32_norms", "has no effect with mixed_precision = no, which computes all in float32"


def uploads_without_repository(hub: HuggingFaceOptions) -> Findings:
    chosen = {
        "huggingface_repo_type": hub.huggingface_repo_type,
        "huggingface_path_in_repo": hub.huggingface_path_in_repo,
        "huggingface_repo_visibility": hub.huggingface_repo_visibility,
        "save_state_to_huggingface": hub.save_state_to_huggingface,
    }
    if hub.huggingface_repo_id:
        return
    for name, value in chosen.items():
        if value:
            yield name, "has no effect without huggingface_repo_id, so nothing is uploaded; set it to upload"


REMARKS = (
    int8_without_compile,
    steps_that_are_not_recorded,
    float32_norms_without_effect,
    uploads_without_repository,
    activation_memory_budget_without_effect,
    steps_replaced_by_epochs,
    compile_mode_with_auto,
    compile_without_effect,
    cpu_offload_checkpointing_conflicts,
    dataset_given_twice,
    control_directory_of_other_data,
    equal_tokens_without_buckets,
    num_repeats_with_metadata_file,
    masks_missing,
    persistent_workers_without_workers,
    validation_without_images,
    ignored_warmup,
    zero_terminal_snr_without_v_prediction,
    random_strength_without_noise,
    lora_learning_rate,
    embedding_learning_rate,
    embedding_options_without_token,
    embedding_named_otherwise,
    full_learning_rate,
    te_lr_without_te_training,
    schedule_without_effect,
    lr_decay_without_effect,
    samples_without_prompts,
    keep_last_without_saving,
    lr_without_training,
    timestep_options_without_effect,
)

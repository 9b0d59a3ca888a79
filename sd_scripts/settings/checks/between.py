"""Find options of different groups that conflict or have no effect together. Each family adds checks of its own."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.spec import Filled, Findings, until_wrong
from sd_scripts.settings.checks import compiling, dataset, loss, memory, network, optimizer, outputs, slurm
from sd_scripts.settings.checks.run_values import RunValues


def problems_between(filled: Filled, family: str) -> Findings:
    """Return every conflict between groups that prevents the run from starting."""
    values = RunValues(filled, card_of(family))
    return _findings((*PROBLEMS, *values.card.problems), values)


def remarks_between(filled: Filled, family: str) -> Findings:
    """Return warnings to show before the start: choices without effect, or with one that was hardly meant."""
    values = RunValues(filled, card_of(family))
    return _findings((*REMARKS, *values.card.remarks), values)


def _findings(checks: Iterable[Callable[[RunValues], Findings]], values: RunValues) -> Iterator[tuple[str, str]]:
    for check in checks:
        yield from until_wrong(partial(check, values))


PROBLEMS = (
    network.built_in_network_conflicts,
    network.network_type_given_twice,
    dataset.validation_takes_all_images,
    dataset.training_size,
    dataset.equal_tokens_without_upscale,
    dataset.cached_latents_with_augmentation,
    dataset.cached_captions_with_changes,
    network.text_encoder_training_conflicts,
    optimizer.learning_rates_missing,
    loss.v_prediction_losses,
    optimizer.warmup_unsupported_by_schedule,
    optimizer.adafactor_schedule_without_adafactor,
    compiling.fullgraph_with_external_network,
    memory.fp8_compute_without_bf16,
    memory.weights_quantized_twice,
    memory.swapped_adapter_conflicts,
    memory.quantized_adapter_conflicts,
    loss.snr_huber_schedule_without_noise_schedule,
    network.network_of_another_family,
    memory.fused_backward_conflicts,
    compiling.compile_check_with_fused_backward,
    compiling.compile_check_with_random_layers,
    memory.swapped_model_conflicts,
    optimizer.one_learning_rate_for_partitioned_weights,
    optimizer.several_rates_for_an_optimizer_of_one,
    network.text_encoders_trained_and_cached,
    optimizer.model_learning_rates_missing,
    network.token_missing,
    network.embedding_learning_rate_missing,
    network.cached_captions_with_new_token,
    network.new_token_with_external_network,
    network.adapter_with_external_network,
    outputs.sample_model_conflicts,
    loss.smaller_size_unsupported,
)


REMARKS = (
    memory.int8_without_compile,
    compiling.steps_that_are_not_recorded,
    memory.float32_norms_without_effect,
    outputs.uploads_without_repository,
    memory.activation_memory_budget_without_effect,
    outputs.steps_replaced_by_epochs,
    slurm.options_of_this_machine,
    compiling.mode_with_auto,
    compiling.compile_without_effect,
    memory.cpu_offload_checkpointing_conflicts,
    dataset.dataset_given_twice,
    dataset.control_directory_of_other_data,
    dataset.equal_tokens_without_buckets,
    dataset.clip_options_of_other_extractions,
    dataset.num_repeats_with_metadata_file,
    dataset.masks_missing,
    dataset.persistent_workers_without_workers,
    dataset.validation_without_images,
    optimizer.ignored_warmup,
    loss.zero_terminal_snr_without_v_prediction,
    loss.random_strength_without_noise,
    optimizer.lora_learning_rate,
    optimizer.embedding_learning_rate,
    network.embedding_options_without_token,
    network.embedding_named_otherwise,
    optimizer.full_learning_rate,
    optimizer.te_lr_without_te_training,
    optimizer.schedule_without_effect,
    optimizer.lr_decay_without_effect,
    outputs.samples_without_prompts,
    outputs.sample_model_is_the_trained_one,
    outputs.keep_last_without_saving,
    network.lr_without_training,
    loss.timestep_options_without_effect,
    loss.smaller_size_of_all_or_none,
)

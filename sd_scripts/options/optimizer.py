"""Options: optimizer, learning rate schedule."""

from sd_scripts.options.spec import OptionGroup, option


class OptimizerOptions(OptionGroup, title="Optimizer"):
    """Who turns gradients into changes of the weights."""

    optimizer_type: str = option("", "Optimiser name or dotted class path.")
    learning_rate: float = option(2e-06, "Base learning rate.")
    optimizer_args: list[str] = option([], "key=value items for the optimiser, literal-evaluated.")
    max_grad_norm: float = option(1.0, "Gradient clip norm; 0 disables.")
    use_8bit_adam: bool = option(False, "Legacy switch for AdamW8bit.")
    use_lion_optimizer: bool = option(False, "Legacy switch for Lion.")


class LrSchedulerOptions(OptionGroup, title="Learning rate schedule"):
    """How the learning rate changes over the run."""

    lr_scheduler: str = option("constant", "Scheduler name.")
    lr_warmup_steps: float = option(0.0, "Warm-up steps, or fraction when below 1.")
    lr_decay_steps: float = option(0.0, "Decay steps, or fraction when below 1.")
    lr_scheduler_num_cycles: int = option(1, "Restarts for cosine_with_restarts.")
    lr_scheduler_power: float = option(1.0, "Exponent of the polynomial schedule.")
    lr_scheduler_timescale: int | None = option(None, "Time scale of inverse_sqrt.")
    lr_scheduler_min_lr_ratio: float | None = option(
        None, "Final/initial rate ratio for cosine_with_min_lr and warmup_stable_decay."
    )
    lr_scheduler_type: str = option("", "Dotted path of a custom scheduler class.")
    lr_scheduler_args: list[str] = option([], "key=value items for the custom scheduler.")

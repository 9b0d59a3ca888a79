"""Options: optimizer, learning rate schedule."""

from collections.abc import Iterable

from sd_scripts.formats.words import first
from sd_scripts.options.optimization.optimizer_args import literals, problems
from sd_scripts.options.optimization.optimizer_table import OPTIMIZERS, known_optimizer, optimizer_name
from sd_scripts.options.optimization.schedule_table import SCHEDULES
from sd_scripts.options.spec import OptionGroup, count, option, optional


class OptimizerOptions(OptionGroup, title="Optimizer"):
    """How gradients update the weights. Old switches such as use_8bit_adam become optimizer_type."""

    optimizer_type: str = option(
        "",
        "Empty is AdamW, the usual choice; AdamW8bit saves memory; Prodigy determines the learning rate itself "
        "(learning_rate = 1). Any class works by dotted path, such as pytorch_optimizer.CAME.",
        label="Optimizer",
        suggestions=tuple(name for name, known in OPTIMIZERS.items() if known.installed),
    )
    learning_rate: float = option(
        2e-06,
        "Step size of the optimizer; Prodigy and D-Adaptation use 1.",
        notes={
            "lora": "1e-4 is usual.",
            "full": "1e-6 to 1e-5 is usual.",
            "textual_inversion": "5e-4 to 5e-3 is usual.",
        },
        within=(0.0, 1000.0),
    )
    optimizer_args: list[str] = option(
        [],
        "More arguments of the optimizer as key=value, such as weight_decay=0.01 or betas=(0.9,0.99).",
        label="Optimizer arguments",
        placeholder="weight_decay=0.01",
    )
    max_grad_norm: float = option(
        1.0,
        "Clip gradients to this norm, which limits the effect of outliers. 0 is off.",
        label="Max gradient norm",
        within=(0.0, 1_000_000.0),
    )

    @property
    def sets_its_own_rate(self) -> bool:
        """Whether the optimizer is Adafactor with relative_step, which ignores learning rates and schedules."""
        given = {key: value for key, value, _ in literals(self.optimizer_args)}
        # warmup_init is a kind of relative step, so it wins over relative_step=False
        relative = bool(given.get("warmup_init") or given.get("relative_step", True))
        return relative and known_optimizer(self.optimizer_type) is OPTIMIZERS["Adafactor"]

    def check(self) -> Iterable[tuple[str, str]]:
        yield from pairs("optimizer_args", self.optimizer_args)
        for problem in first(problems(self.optimizer_type, self.optimizer_args), NOT_LISTED):
            yield "optimizer_args", problem


class LrSchedulerOptions(OptionGroup, title="Learning rate schedule"):
    """How the learning rate changes over the run."""

    lr_scheduler: str = option(
        "constant",
        "Learning rate schedule: constant keeps it, cosine and linear decay to 0, cosine_with_restarts decays several "
        "times, adafactor leaves it to Adafactor.",
        label="Schedule",
        suggestions=tuple(SCHEDULES),
    )
    lr_warmup_steps: float = option(
        0.0,
        "Steps over which the learning rate rises from 0; below 1 (or 10%) a fraction of all steps.",
        label="Warm-up",
        within=(0, 10_000_000),
        steps_or_fraction=True,
    )
    lr_decay_steps: float = option(
        0.0,
        "Steps over which warmup_stable_decay decays at the end; below 1 (or 10%) a fraction of all steps.",
        label="Decay steps",
        within=(0, 10_000_000),
        steps_or_fraction=True,
    )
    lr_scheduler_num_cycles: int = option(
        1, "Number of cycles of cosine_with_restarts.", label="Restart cycles", within=(1, 100_000)
    )
    lr_scheduler_power: float = option(
        1.0, "Exponent of the polynomial schedule.", label="Polynomial power", within=(0.0, 1000.0)
    )
    lr_scheduler_timescale: int | None = count(
        "Time scale of the inverse_sqrt schedule, in steps. Default: the warm-up.", label="inverse_sqrt time scale"
    )
    lr_scheduler_min_lr_ratio: float | None = optional(
        "Lowest learning rate of cosine_with_min_lr and warmup_stable_decay, as a fraction of learning_rate.",
        label="Min learning rate ratio",
        within=(0.0, 1.0),
    )
    lr_scheduler_type: str = option(
        "",
        "Scheduler class by dotted path, such as torch.optim.lr_scheduler.StepLR. Replaces lr_scheduler.",
        label="Scheduler class",
    )
    lr_scheduler_args: list[str] = option(
        [], "Arguments of the scheduler class or schedule as key=value, such as gamma=0.9.", label="Schedule arguments"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        yield from pairs("lr_scheduler_args", self.lr_scheduler_args)
        wrong = (why for _, _, why in literals(self.lr_scheduler_args) if why)
        yield from (("lr_scheduler_args", why) for why in first(wrong, NOT_LISTED))
        name, _, start = self.lr_scheduler.partition(":")
        if not self.lr_scheduler_type and (name not in SCHEDULES or (start and name != "adafactor")):
            yield (
                "lr_scheduler",
                f"{self.lr_scheduler!r} is not one of {', '.join(SCHEDULES)}; for a class of your own set "
                "lr_scheduler_type",
            )


def remarks(options: OptimizerOptions) -> list[str]:
    """Return warnings about settings that are allowed but seldom intended, one sentence each."""
    name = optimizer_name(options.optimizer_type)
    found = []
    if known_optimizer(name).one_rate and options.learning_rate <= 0.1:
        found.append(
            f"learning_rate: {name} multiplies the rate it finds by {options.learning_rate}, which is far "
            "too low; 1 is usual"
        )
    if options.sets_its_own_rate:
        found.append(
            "learning_rate, unet_lr, text_encoder_lr, lr_scheduler: Adafactor sets its own rate and ignores them; "
            "add relative_step=False to optimizer_args to use them"
        )
    elif name == "Adafactor" and options.max_grad_norm:
        found.append("max_grad_norm: Adafactor limits its updates itself; 0 is recommended with it")
    return found


NOT_LISTED = "has more problems, which are not listed; correct these first"


def pairs(name: str, items: list[str]) -> Iterable[tuple[str, str]]:
    """Yield a problem for each item of the list option `name` that is not key=value."""
    wrong = (item for item in items if not item.partition("=")[0].strip() or "=" not in item)
    yield from ((name, why) for why in first((f"{item!r} is not key=value" for item in wrong), NOT_LISTED))

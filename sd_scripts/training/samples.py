"""Sample images during training: when they are due and where they go."""

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving
from sd_scripts.options.generating.prompt_lines import PromptFile, SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.training.process.error_hints import brief
from sd_scripts.training.saving.train_state import TrainState
from sd_scripts.training.training_data import TrainingData


def prompts_of(file: PromptFile | None, card: FamilyCard, sample_model: str | None) -> list[SamplePrompt]:
    """Return the prompts of a file, if there is one, for samples made with `sample_model` (None: the trained one).
    Raises ValueError with all problems together; call it before the model loads."""
    if file is None:
        return []
    if problems := file.problems(card.capabilities):
        raise ValueError("\n".join(problems))
    return file.prompts(card.defaults_of_samples(sample_model))


class SampleFailure(NamedTuple):
    """Why a sample could not be made or written, which ends no run. Each kind is reported once."""

    kind: str
    text: str


class Sampler:
    def __init__(self, training_data: TrainingData, train_state: TrainState):
        self._context = training_data.context
        self._data = training_data
        self._train_state = train_state
        self._options = self._context.settings[SampleOptions]
        self.prompts = training_data.prompts

    def due_at_first(self) -> bool:
        return bool(self.prompts and self._options.sample_at_first)

    def due_at_step(self, step: int) -> bool:
        every = 0 if self._options.sample_every_n_epochs else self._options.sample_every_n_steps
        return bool(self.prompts and every and step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        every = self._options.sample_every_n_epochs
        return bool(self.prompts and every and epoch % every == 0)

    def run(self, step: int, epoch: int | None = None) -> None:
        """Sample all prompts at a step or after an epoch, spread over the processes, or by all together if the weights
        are sharded. File names follow sd-scripts."""
        if not self.prompts:
            self._context.warn("sample_prompts: no prompts to sample; set it to a file with prompts")
            return
        with self._data.sample_model.in_denoiser() if self._data.sample_model else nullcontext():
            self._run(f"{step:06d}" if epoch is None else f"e{epoch:06d}", step)

    def _run(self, when: str, step: int) -> None:
        progress = self._context.phase("sampling")
        together = self._train_state.trainable.shards is not None
        total = len(self.prompts)
        world = 1 if together else self._context.world
        for first in range(0, total, world):
            number = first if together else first + self._context.rank
            mine = [self._make(number, when)] if number < total else []
            for made in mine if together else self._context.gathered(mine):
                if isinstance(made, SampleFailure):
                    self._context.warn_once(f"sample {made.kind}", made.text)
                else:
                    self._context.emit("sample", step=step, **made)
            progress(min(first + world, total), total)

    def _make(self, number: int, when: str) -> dict[str, Any] | SampleFailure:
        """Make one sample; return its event payload, or why there is none."""
        try:
            return self._made(number, when)
        except OSError as error:
            failure = SampleFailure(f"{type(error).__name__} {error.errno}", f"output_dir: the sample {error}")
        except Exception as error:
            why = brief(error)
            failure = SampleFailure(
                type(error).__name__,
                f"sample_prompts: the sample of prompt {number + 1} could not be made: {why}. The run continues "
                "without it; further failures of this kind are not reported",
            )
        if self._context.device.type == "cuda":  # now that the error no longer keeps the sample's tensors alive
            torch.cuda.empty_cache()
        return failure

    def _made(self, number: int, when: str) -> dict[str, Any]:
        prompt = self.prompts[number]
        # a compiled no_grad pass would need graphs of its own
        uncompiled = torch.compiler.set_stance("force_eager")
        # the training adapter is in the trained weights only
        for_samples = nullcontext() if self._data.sample_model else self._train_state.trainable.for_samples()
        with torch.random.fork_rng(), self._train_state.averaged(), uncompiled, for_samples:
            text = self._data.text_of_prompt(number)
            media = self._data.family.sample(self._data.components, prompt, text, self._context.settings)
        name = self._context.settings[SavingOptions].output_name
        prefix = f"{name}_" if name else ""
        seed = "" if prompt.seed is None else f"_{prompt.seed}"
        file = f"{prefix}{when}_{number:02d}_{time.strftime('%Y%m%d%H%M%S')}{seed}{media.suffix}"
        path = self._context.output_dir / "sample" / file
        if self._context.is_main or not self._train_state.trainable.shards:
            with saving(path), atomic_file(path) as part:
                media.write(part)
        payload = {"path": str(path), "prompt": prompt.prompt, "seed": prompt.seed, "number": number}
        return {**payload, **media.facts}

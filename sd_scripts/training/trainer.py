"""The training loop, the same for every model family and training method."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TypeVar

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.trained_token import require_token_in_captions, trained_token
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.family import Family, StepInputs
from sd_scripts.library.optim import optimizers
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.steps import plan_training
from sd_scripts.planning.trained_shapes import shapes_of
from sd_scripts.settings.preflight import prompt_file
from sd_scripts.training.compiling.compiler import Compiler, choose_automatically, wait_until_warm
from sd_scripts.training.compiling.recovery import Recovery
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.execution.checked import require_one_process
from sd_scripts.training.execution.choose import Execution
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.recorder import records_steps, stream_for
from sd_scripts.training.execution.step_inputs import step_inputs, step_loss
from sd_scripts.training.methods.method import Method
from sd_scripts.training.process.command_listener import CommandListener
from sd_scripts.training.process.error_hints import nonfinite_hint
from sd_scripts.training.process.sigterm import SigtermWatcher
from sd_scripts.training.reporting import StepReporter
from sd_scripts.training.samples import Sampler, prompts_of
from sd_scripts.training.saving.checkpoints import Saver
from sd_scripts.training.saving.dry_save import dry_save
from sd_scripts.training.saving.emergency import EmergencySaver
from sd_scripts.training.saving.hub_upload import HubUploads
from sd_scripts.training.saving.origin import model_origin_of, origin_of
from sd_scripts.training.saving.outputs import find_outputs
from sd_scripts.training.saving.recovery import clean_up, clean_up_caches
from sd_scripts.training.saving.resuming import find_state, first_progress, keep_seed, report_changes
from sd_scripts.training.saving.train_state import load_state, new_train_state
from sd_scripts.training.saving.writer import Writer
from sd_scripts.training.training_data import (
    TrainingData,
    batches_per_epoch,
    encode_ahead,
    open_training_data,
    place_on_device,
    read_dataset,
    reads_vae_late,
    warn_about_cut_texts,
)
from sd_scripts.training.validation import Validator

logger = logging.getLogger(__name__)

T = TypeVar("T")

STARTED_STEPS = 3
"""Steps in which a run compiles and records, for which it needs the CPU; then the GPU is the busy one."""


class Trainer:
    """Runs a training. The constructor prepares everything and raises ValueError for mistakes in the settings."""

    def __init__(self, context: Context, family: Family, method: Method):
        self.context, self.family, self.method = context, family, method
        settings = context.settings
        self.options = settings[TrainingOptions]

        # everything that can be checked before the model loads, which takes time
        require_one_process(context)
        if context.is_main:
            clean_up(context.output_dir, settings[SavingOptions].output_name, context.run_dir)
        context.accelerator.wait_for_everyone()
        self.saved = saved = find_state(context)
        outputs = find_outputs(context, saved.folder if saved else None)
        self.uploads = HubUploads(context)
        if saved:
            keep_seed(saved, context)
        prompts = prompts_of(prompt_file(settings), family.card, settings[SampleOptions].sample_model)
        plan = read_dataset(context, family)
        require_token_in_captions(trained_token(settings.get(EmbeddingOptions), family.card), plan, context.warn)
        if context.is_main:
            clean_up_caches(plan.folders())
        self.train_plan = plan_training(self.options, batches_per_epoch(context, plan))
        start = first_progress(saved, context, self.train_plan)
        origin = origin_of(model_origin_of(settings), plan, self.train_plan.max_steps)
        if saved:
            report_changes(saved, origin, plan.blueprint.source, context)
        self.first = start.step

        checks = choose_automatically(
            context, shapes_of(settings, family.card, plan), steps=self.train_plan.max_steps - self.first
        )
        context.at_end.enter_context(stream_for(context.device, records=records_steps(context)))
        self.training_data = self._load(plan, prompts, checks_compile=checks)
        self._attach()
        self.loss = partial(step_loss, self.training_data, autocast=self.trainable.needs_autocast)
        self.loader = self.training_data.loader(
            plan, accumulation=self.options.gradient_accumulation_steps, max_train_steps=self.train_plan.max_steps
        )
        self.train_state = new_train_state(context, self.trainable, self.train_plan, origin, start)
        if saved:
            load_state(saved, self.train_state)
        self.writer = Writer(self.training_data, self.train_state, outputs, self.uploads)
        self.saver = Saver(context, self.train_state, self.writer)
        self.emergency = EmergencySaver(context, self.train_state, self.saver, lambda: self.reporter.nonfinite_steps)
        self.sigterm = SigtermWatcher(context, self.emergency.save_before_exit)
        self._choose_execution()
        optimizers.train_mode(self.train_state.optimizer)

        # what happens between steps
        dry_save(context, self.train_state, self.writer)
        self.validator = Validator(self.training_data, self.train_state, self.loss)
        self.sampler = Sampler(self.training_data, self.train_state)
        self.listener = CommandListener(context)
        if saved:
            self.saver.tidy()

    def _load(self, plan: DataPlan, prompts: list[SamplePrompt], *, checks_compile: bool) -> TrainingData:
        """Load the model's components one at a time, and encode ahead if the options ask for it."""
        context = self.context
        context.began = True
        context.phase("loading")
        training_data = open_training_data(context, self.family, self.method, plan, prompts)
        components = training_data.components
        keep_all = self.method.needs_all(self.family, context.settings.get(NetworkOptions))
        if not reads_vae_late(training_data, keep_all=keep_all):
            components.load(VAE, *training_data.condition_encoders)
        warn_about_cut_texts(training_data)
        self.compiler = Compiler(context, self.family, components, training_data.shapes(), checks=checks_compile)
        self.recovery = Recovery(context, self.compiler)
        self.compiler.compile_ahead()
        encode_ahead(training_data, self.recovery, keep_all=keep_all)
        context.phase("loading")
        components.load(DENOISER)
        place_on_device(training_data)
        return training_data

    def _attach(self) -> None:
        """Make the model trainable, in the order that compile needs: method, gradient checkpointing, then compiler."""
        components = self.training_data.components
        wait_until_warm()
        self.compiler.watch(0)
        self.trainable = self.method.prepare(self.family, components, self.context)
        self.trainable.train()
        if self.options.gradient_checkpointing:
            network = self.context.settings.get(NetworkOptions)
            self.family.checkpoint_gradients(components.denoiser, self.options, network)
            for encoder in compress(components.text_encoders, self.training_data.trains_encoder):
                encoder.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        self.compiler.compile_for_steps(self.training_data.step_encoders)

    def _choose_execution(self) -> None:
        """Choose how steps run."""
        state = self.train_state
        self.eager = Eager(
            trainable=self.trainable,
            optimizer=state.optimizer,
            loss=self.loss,
            inputs=self._inputs,
            progress=state.progress,
            scheduler=state.scheduler,
            ema=state.ema,
            scaler=state.scaler,
            accumulation=self.options.gradient_accumulation_steps,
            max_grad_norm=self.context.settings[OptimizerOptions].max_grad_norm,
            processes=self.context.world,
            mean=self.context.mean,
            consistent=self.sigterm.consistent if self.trainable.consistent_in_backward else nullcontext,
        )
        shapes = len(self.training_data.shapes())
        self.runner = Execution(self.context, self.compiler, self.recovery, self.eager, shapes=shapes)

    def train(self) -> Path | None:
        """Train and return the final file; None if the run was stopped."""
        progress = self.train_state.progress
        self._report_start()
        self._phase_of_steps()
        self.began = time.monotonic()
        max_nonfinite = self.options.max_nonfinite_steps if self.trainable.skips_nonfinite else 1
        self.reporter = StepReporter(self.context, self.train_plan.max_steps, progress.step, max_nonfinite)
        self.listener.open()
        self.sigterm.open()
        try:
            self._between_steps(lambda: self.sampler.run(progress.step), due=self.sampler.due_at_first())
            self.runner.clock.restart()
            stopped = False
            while progress.step < self.train_plan.max_steps and not stopped:
                stopped = self._epoch()
            self.reporter.flush()
        except Exception:
            with self.sigterm.saving():
                self.emergency.save()
            self.sigterm.after_error()
            raise
        finally:
            self.reporter.close()
            self.sigterm.close()
            self.listener.close()
            self.compiler.close()
        path = None if stopped else self._finish()
        self.runner.remember_speed()
        return path

    def _report_start(self) -> None:
        train_plan = self.train_plan
        resumed = {"resumed_from": str(self.saved.folder)} if self.saved else {}
        shapes = self.training_data.shapes()
        images = sum(shape.images * count for shape, count in shapes.items())  # of all processes
        self.context.emit(
            "started",
            method=self.method.name,
            family=self.family.card.name,
            max_steps=train_plan.max_steps,
            epochs=train_plan.epochs,
            step=self.train_state.progress.step,
            images=len(self.training_data.plan.items),
            batches_per_epoch=train_plan.batches_per_epoch,
            images_per_step=round(images / train_plan.steps_per_epoch, 3),  # some have fewer
            shapes=list(map(str, shapes)),
            device=str(self.context.device),
            seed=self.context.seed,
            **resumed,
        )

    def _epoch(self) -> bool:
        """Train the rest of the current epoch; return whether a stop was requested."""
        progress = self.train_state.progress
        epoch = progress.epoch
        waiting: list[Batch] = []
        for batch in self.loader.epoch(epoch, progress.batch):
            progress.batch += 1
            waiting.append(batch)
            if len(waiting) < self.eager.accumulation and progress.batch < self.train_plan.batches_per_epoch:
                continue
            self._step(waiting)
            waiting = []
            if self._after_step():
                return True
            if progress.step >= self.train_plan.max_steps:
                break
        if progress.batch >= self.train_plan.batches_per_epoch:
            progress.next_epoch()
            self.emergency.note()
        self._after_epoch(epoch)
        return False

    def _step(self, batches: Sequence[Batch]) -> None:
        progress = self.train_state.progress
        rates = self.train_state.rates()
        result = self.runner.step(batches)
        self.emergency.note_step()
        # a GradScaler finds its scale by overflowing gradients, and skips those steps itself
        checks_norm = self.trainable.skips_nonfinite and not self.train_state.scaler
        self.reporter.step(progress, rates, result, checks_norm)
        self.runner.watch(progress.step, result.shape)

    def _inputs(self, batch: Batch, number: int) -> StepInputs:
        """Return the inputs of a micro-step. Noise and dropout are drawn by its number: a repeated one draws the
        same."""
        key = (self.train_state.progress.step, number)
        inputs = step_inputs(self.training_data, batch, *key)
        self.context.seed_layers("dropout", self.context.rank, *key)
        return inputs

    def _after_step(self) -> bool:
        """Save, validate, sample and obey commands where due; return whether to stop."""
        step = self.train_state.progress.step
        if step == self.first + STARTED_STEPS:
            self.writer.hash_base_files()
        with self.sigterm.consistent():  # another process may be in the middle of its step
            commands = self.listener.poll()
        if "stop" in commands:
            self.sigterm.stopping()
        for command, ids in commands.items():
            self.context.emit("heard", command=command, ids=ids, step=step)
        last = step >= self.train_plan.max_steps
        stops = "stop" in commands and not last
        requested = stops or "save" in commands
        saves = requested or (self.saver.due_at_step() and not last)
        save = self.saver.save_and_stop if stops else partial(self.saver.at_step, with_state=requested)
        self._between_steps(lambda: self._save(save, requested), due=saves, saves=True)
        self._between_steps(lambda: self.validator.run(step), due=self.validator.due_at_step(step))
        self._between_steps(lambda: self.sampler.run(step), due="sample" in commands or self.sampler.due_at_step(step))
        if not stops:
            return False
        self.uploads.finish()
        self.context.emit("stopped", step=step)
        logger.info("Stopped at step %d; the state is saved, and resume continues from it", step)
        return True

    def _after_epoch(self, epoch: int) -> None:
        step = self.train_state.progress.step
        last = step >= self.train_plan.max_steps
        self.context.emit("epoch", epoch=epoch)
        saves = self.saver.due_at_epoch(epoch) and not last
        self._between_steps(lambda: self._save(lambda: self.saver.at_epoch(epoch)), due=saves, saves=True)
        self._between_steps(lambda: self.validator.run(step), due=self.validator.due_at_epoch(epoch))
        self._between_steps(lambda: self.sampler.run(step, epoch), due=self.sampler.due_at_epoch(epoch))

    def _save(self, save: Callable[[], T], requested: bool = False) -> T | None:
        """Save, but skip periodic saves while steps are non-finite: a state just before a failure is not a good place
        to resume from. Requested saves happen (`requested`), unless the weights themselves are non-finite."""
        if not self.reporter.nonfinite_steps:
            return save()
        step = self.train_state.progress.step
        if not requested:
            self.context.warn(f"nothing is saved at step {step}: its loss or gradient is not finite")
            return None
        if not all(bool(tensor.isfinite().all()) for tensor in self.trainable.state_dict().values()):
            raise Failed(f"the weights are not finite at step {step}", nonfinite_hint(self.context.settings))
        return save()

    def _between_steps(self, do: Callable[[], object], *, due: bool, saves: bool = False) -> None:
        """Save, sample and validate if due, outside of the step's timing and only after all losses so far are known to
        be finite."""
        if not due:
            return
        self.reporter.flush()
        averages = optimizers.is_schedule_free(self.train_state.optimizer)  # they replace the weights during it
        with self.sigterm.saving() if saves else nullcontext() if averages else self.sigterm.consistent():
            do()
        self.trainable.train()
        self._phase_of_steps()
        self.runner.clock.restart()

    def _phase_of_steps(self) -> None:
        """Report the phase of the steps: `compiling` for the first one of a compiled run, then `training`."""
        compiles = self.compiler.compiles_steps and self.train_state.progress.step == self.first
        self.context.phase("compiling" if compiles else "training")

    def _finish(self) -> Path:
        path = self._save(self.saver.save_last, requested=True)
        assert path
        self.uploads.finish()
        seconds = round(time.monotonic() - self.began, 1)
        self.context.emit("finished", step=self.train_state.progress.step, path=str(path), seconds=seconds)
        return path

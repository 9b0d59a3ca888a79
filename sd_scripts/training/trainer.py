"""The training loop, the same for every model family and training method."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.dataset import DataPlan, plan_data
from sd_scripts.data.epochs import batch_shapes
from sd_scripts.families.components import DENOISER, VAE
from sd_scripts.families.family import Family, StepInputs
from sd_scripts.library import optimizers
from sd_scripts.library.lr_schedulers import learning_rates, make_scheduler
from sd_scripts.options import model_checks
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.prompt_lines import SamplePrompt
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import EmaOptions, SavingOptions
from sd_scripts.options.training import LATEST, ResumeOptions, TrainingOptions
from sd_scripts.planning.compile_choice import choose_compile
from sd_scripts.planning.steps import plan_training
from sd_scripts.runs.measurements import remembered
from sd_scripts.runs.nvidia import CPU, Gpu, first_gpu
from sd_scripts.runs.outputs import dated_name
from sd_scripts.training.checkpoints import Saver
from sd_scripts.training.command_listener import CommandListener
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.dry_save import dry_save
from sd_scripts.training.ema import Ema
from sd_scripts.training.error_hints import SAVED_BEFORE, brief, nonfinite_hint
from sd_scripts.training.execution.checked import require_one_process
from sd_scripts.training.execution.choose import Execution
from sd_scripts.training.execution.compiler import Compiler
from sd_scripts.training.execution.eager import Eager, HalfScaler
from sd_scripts.training.execution.recorder import records_steps, stream_for
from sd_scripts.training.execution.recovery import Recovery
from sd_scripts.training.hub_upload import HubUploads
from sd_scripts.training.methods import Method
from sd_scripts.training.origin import FLAG, changed_models, changes, model_origin_of, origin_of
from sd_scripts.training.outputs import OwnOutputs, marked_as_running, other_runs
from sd_scripts.training.progress import AlreadyFinished, Progress, starting_point
from sd_scripts.training.recovery import clean_up, clean_up_caches, finished_file, newest_state
from sd_scripts.training.reporting import StepReporter
from sd_scripts.training.samples import Sampler, prompts_of
from sd_scripts.training.sigterm import SigtermWatcher
from sd_scripts.training.speed_log import SpeedLog
from sd_scripts.training.step_inputs import step_inputs
from sd_scripts.training.train_state import SavedState, TrainState, load_state, read_whole, resume_point
from sd_scripts.training.training_data import (
    TrainingData,
    batches_per_epoch,
    encode_ahead,
    place_on_device,
    reads_vae_late,
    warn_about_cut_texts,
)
from sd_scripts.training.validation import Validator
from sd_scripts.training.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")


def _refused(change: str) -> str:
    return f"{change}; restore it, or set {FLAG}"


class Trainer:
    """Runs a training. The constructor prepares everything and raises ValueError for mistakes in the settings."""

    def __init__(self, context: Context, family: Family, method: Method):
        self.context, self.family, self.method = context, family, method
        settings = context.settings
        self.options, self.output_name = settings[TrainingOptions], settings[SavingOptions].output_name

        # everything that can be checked before the model loads, which takes time
        require_one_process(context)
        if context.is_main:
            clean_up(context.output_dir, self.output_name, context.run_dir)
        context.accelerator.wait_for_everyone()
        self.saved = saved = self._find_state(settings[ResumeOptions].resume)
        self.outputs = self._find_outputs()
        self.uploads = HubUploads(context)
        if saved:
            self._take_seed(saved)
        prompts = prompts_of(settings, family)
        plan = plan_data(
            settings,
            seed=context.seed,
            warn=context.warn,
            bucket_multiple=family.card.bucket_multiple,
            token_multiple=family.card.token_multiple,
            takes_controls=family.card.has("control_images"),
            text_sees_controls=family.text.sees_controls,
            title=family.card.title,
            progress=context.cancellable_phase("reading the dataset"),
        )
        method.check_data(family, context, plan)
        if context.is_main:
            clean_up_caches(plan.folders())
        self.train_plan = plan_training(self.options, batches_per_epoch(context, plan))
        start = self._start(saved)
        self.origin = origin_of(settings, plan, self.train_plan.max_steps)
        if saved:
            self._compare(saved, plan)
        self.first = start.step

        checks = self._choose_compile(plan)
        self._records = records_steps(context)
        context.at_end.enter_context(stream_for(context.device, records=self._records))
        self.training_data = self._load(plan, prompts, checks_compile=checks)
        self._attach()
        self._choose_optimizer(start)
        if saved:
            load_state(saved, self.train_state)
        self.sigterm = SigtermWatcher(context, self._save_before_exit)
        self._choose_execution()
        optimizers.train_mode(self.train_state.optimizer)

        # what happens between steps
        writer = Writer(self.training_data, self.train_state, self.outputs, self.uploads)
        self.saver = Saver(context, self.train_state, writer)
        dry_save(context, self.train_state, writer)
        self.validator = Validator(self.training_data, self.train_state, self.loss)
        self.sampler = Sampler(self.training_data, self.train_state)
        self.listener = CommandListener(context)
        if saved:
            self.saver.tidy()

    def _find_state(self, resume: str | None) -> SavedState | None:
        """Return the state to resume from, the same in all processes; `latest` is the newest of this output_name."""
        context, folder = self.context, self.context.output_dir
        found, problem = None, ""
        if resume and context.is_main:
            try:
                if resume != LATEST:
                    found = read_whole(resume)
                    if why := found.why_not_loaded(context.settings):
                        raise ValueError(why)
                elif found := newest_state(folder, self.output_name, context.warn, self._why_not_resumed):
                    logger.info("resume: resuming from '%s'", found.folder)
                else:
                    logger.info("resume: starting from the beginning, '%s' has no state of this run yet", folder)
            except ValueError as error:
                problem = str(error)
        found, problem = context.agreed((found, problem))
        if problem:
            raise ValueError(problem)
        return found

    def _why_not_resumed(self, saved: SavedState) -> str:
        """Return a sentence if the run cannot continue from a state, by its summary; else an empty text."""
        settings = self.context.settings
        if why := saved.why_not_loaded(settings):
            return why
        if saved.origin is None or settings[ResumeOptions].resume_changed_model:
            return ""
        return next((_refused(each) for each in changed_models(saved.origin, model_origin_of(settings))), "")

    def _find_outputs(self) -> OwnOutputs:
        """Return what this run may replace; warn about what happens to an earlier run's files."""
        context, name = self.context, self.output_name
        values = {**context.settings.values(), "output_dir": context.output_dir}
        if context.is_main:
            for other in other_runs(context.output_dir, name):
                context.warn(
                    f"output_name: another run ({other}) is writing files of this name to '{context.output_dir}'; both "
                    "sets of files are kept, under different names. Give each run its own output_name"
                )
            context.at_end.enter_context(marked_as_running(context.output_dir, name, context.run_dir))
        outputs = OwnOutputs(values, self.saved.folder if self.saved else None)
        if kept := outputs.kept:
            context.warn(
                f"output_name: '{context.output_dir}' holds files of an earlier run ({kept[0].name}"
                f"{f' and {len(kept) - 1} more' if kept[1:] else ''}). Before this run saves its first file, they are "
                f"renamed to '{dated_name(kept, name)}...'. Set overwrite to replace them instead"
            )
        return outputs

    def _start(self, saved: SavedState | None) -> Progress:
        options, train_plan = self.context.settings[ResumeOptions], self.train_plan
        if not saved:
            return starting_point(options, train_plan)
        again = options.resume == LATEST
        last = finished_file(self.context.output_dir, self.output_name)
        if again and last and saved.progress.step == train_plan.max_steps:
            raise AlreadyFinished(train_plan.max_steps, last)
        return resume_point(saved, train_plan, self.context.warn, again=again)

    def _compare(self, saved: SavedState, plan: DataPlan) -> None:
        """Warn about changes since the state was saved. Raises ValueError for another base model unless allowed."""
        if saved.origin is None:
            self.context.warn("resume: the state does not record its settings, so changes since cannot be reported")
            return
        if models := list(changed_models(saved.origin, self.origin)):
            if not self.context.settings[ResumeOptions].resume_changed_model:
                raise ValueError("\n".join(map(_refused, models)))
            for each in models:
                self.context.warn(f"{each}; {FLAG} allows it")
        for change in changes(saved.origin, self.origin, plan.blueprint.source):
            self.context.warn(change)

    def _choose_compile(self, plan: DataPlan) -> bool:
        """Replace compile_auto by what it chooses; return whether the run checks the choice."""
        context, train_plan = self.context, self.train_plan
        settings, options = context.settings, context.settings[CompileOptions]
        if not (options.compile and options.compile_auto):
            return False
        choice = None
        if context.is_main:
            choice = choose_compile(
                settings,
                self.family.card,
                batch_shapes(plan, short_batches=settings[DatasetOptions].short_batches),
                steps=train_plan.max_steps - self.first,
                accumulation=train_plan.accumulation,
                gpu=first_gpu() if context.device.type == "cuda" else Gpu(CPU),
                known=remembered(),
            )
        choice = context.agreed(choice)
        context.settings = settings.replaced(choice.changes)
        logger.info("compile_auto: %s", choice)
        context.emit("compile", step=0, text=f"compile_auto: {choice}")
        # processes would decide differently, and a resumed run must repeat what it would have computed
        alone = context.world == 1 and not settings[CudaOptions].deterministic
        return alone and context.settings[CompileOptions].compile

    def _load(self, plan: DataPlan, prompts: list[SamplePrompt], *, checks_compile: bool) -> TrainingData:
        """Load the model's components one after the other, and encode what the options ask to encode ahead."""
        context, family = self.context, self.family
        context.began = True
        context.phase("loading")
        lowram = context.settings[ModelOptions].lowram
        components = self.method.open(family, context, context.device if lowram else torch.device("cpu"))
        for remark in model_checks.model_remarks(context.settings, Path(components.source)):
            context.warn(remark)
        components.on_load = partial(self.method.change_base, family, components, context)
        training_data = TrainingData(
            context=context,
            family=family,
            components=components,
            plan=plan,
            trains_encoder=self.method.trains_text_encoders(family, context),
            prompts=prompts,
        )
        keep_all = self.method.needs_all(family, context.settings)
        if not reads_vae_late(training_data, keep_all=keep_all):
            components.load(VAE)
        warn_about_cut_texts(training_data)
        self.compiler = Compiler(context, family, components, training_data.shapes(), checks=checks_compile)
        self.recovery = Recovery(context, self.compiler)
        self.compiler.compile_ahead()
        encode_ahead(training_data, self.recovery, keep_all=keep_all)
        self.compiler.watch(0)
        context.phase("loading")
        components.load(DENOISER)
        place_on_device(training_data)
        return training_data

    def _attach(self) -> None:
        """Make the model trainable, in the order that compile needs: method, gradient checkpointing, then compiler."""
        components = self.training_data.components
        self.trainable = self.method.prepare(self.family, components, self.context)
        self.trainable.train()
        if self.options.gradient_checkpointing:
            self._checkpoint_gradients()
        self.compiler.compile_for_steps(self.training_data.step_encoders)

    def _choose_optimizer(self, start: Progress) -> None:
        """Create the data loader, and the optimizer with its schedule."""
        settings, accumulation = self.context.settings, self.options.gradient_accumulation_steps
        self.loader = self.training_data.loader(
            self.training_data.plan, accumulation=accumulation, max_train_steps=self.train_plan.max_steps
        )
        optimizer = self.trainable.make_optimizer(settings[OptimizerOptions])
        self.names = [group.get("name", f"group{i}") for i, group in enumerate(optimizer.param_groups)]
        new_scheduler = partial(make_scheduler, settings[LrSchedulerOptions], total_steps=self.train_plan.max_steps)
        self.train_state = TrainState(
            trainable=self.trainable,
            optimizer=optimizer,
            hyperparameters=optimizers.hyperparameters(optimizer),  # before the scheduler changes them
            new_scheduler=new_scheduler,
            scheduler=new_scheduler(optimizer),
            origin=self.origin,
            scaler=HalfScaler("cuda") if self.options.mixed_precision == "fp16" else None,
            train_plan=self.train_plan,
            progress=start,
            ema=Ema(self.trainable, settings[EmaOptions]) if settings[EmaOptions].use_ema else None,
        )

    def _choose_execution(self) -> None:
        """Choose how steps run."""
        state, stays = self.train_state, self.trainable.consistent_in_backward
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
            consistent=self.sigterm.consistent if stays else nullcontext,
        )
        self.runner = Execution(
            self.context,
            self.compiler,
            self.recovery,
            self.eager,
            shapes=len(self.training_data.shapes()),
            records=self._records,
            remember=self._remember_speed,
        )

    def train(self) -> Path | None:
        """Train and return the final file; None if the run was stopped."""
        progress, train_plan = self.train_state.progress, self.train_plan
        resumed = {"resumed_from": str(self.saved.folder)} if self.saved else {}
        shapes = self.training_data.shapes()
        images = sum(shape.images * count for shape, count in shapes.items())  # of all processes
        self.context.emit(
            "started",
            method=self.method.name,
            family=self.family.card.name,
            max_steps=train_plan.max_steps,
            epochs=train_plan.epochs,
            step=progress.step,
            images=len(self.training_data.plan.items),
            batches_per_epoch=train_plan.batches_per_epoch,
            images_per_step=round(images / train_plan.steps_per_epoch, 3),  # some have fewer
            shapes=list(map(str, shapes)),
            device=str(self.context.device),
            seed=self.context.seed,
            **resumed,
        )
        self._phase_of_steps()
        self.began = time.monotonic()
        max_nonfinite = self.options.max_nonfinite_steps if self.trainable.skips_nonfinite else 1
        self.reporter = StepReporter(self.context, train_plan.max_steps, progress.step, max_nonfinite)
        self.listener.open()
        self.sigterm.open()
        self.complete = replace(progress)
        on_gpus = self.context.world > 1 and self.context.device.type == "cuda"
        self.updated = torch.cuda.Event() if on_gpus else None
        try:
            self._between_steps(lambda: self.sampler.run(progress.step), due=self.sampler.due_at_first())
            self.runner.clock.restart()
            stopped = False
            while progress.step < train_plan.max_steps and not stopped:
                stopped = self._epoch()
            self.reporter.flush()
        except Exception:
            with self.sigterm.saving():
                self._save_in_emergency()
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

    def loss(self, inputs: StepInputs) -> Tensor:
        """Return the losses (B,) of one micro-batch; trained text encoders encode the captions first."""
        components = self.training_data.components
        with self._casting():
            if inputs.tokens:
                trained = self.family.text.encode(components, inputs.tokens)
                inputs = replace(inputs, text=inputs.text | trained)
            return self.family.loss(components, inputs, self.context.settings)

    def _casting(self) -> AbstractContextManager[object]:
        if not self.trainable.needs_autocast or self.context.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.context.device.type, self.context.dtype)

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
            self.complete = replace(progress)
        self._after_epoch(epoch)
        return False

    def _step(self, batches: Sequence[Batch]) -> None:
        progress = self.train_state.progress
        rates = dict(zip(self.names, learning_rates(self.train_state.scheduler), strict=True))
        result = self.runner.step(batches)
        self.complete = replace(progress)
        if self.updated:
            self.updated.record()
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

    def _remember_speed(self, speed: SpeedLog) -> None:
        compiled = self.compiler.log.totals() if self.compiler.active else None
        speed.remember(self.context, self.family.card.name, self.method.name, compiled)

    def _after_step(self) -> bool:
        """Save, validate, sample and obey commands where due; return whether to stop."""
        step = self.train_state.progress.step
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
        step, last = self.train_state.progress.step, self.train_state.progress.step >= self.train_plan.max_steps
        self.context.emit("epoch", epoch=epoch)
        saves = self.saver.due_at_epoch(epoch) and not last
        self._between_steps(lambda: self._save(lambda: self.saver.at_epoch(epoch)), due=saves, saves=True)
        self._between_steps(lambda: self.validator.run(step), due=self.validator.due_at_epoch(epoch))
        self._between_steps(lambda: self.sampler.run(step, epoch), due=self.sampler.due_at_epoch(epoch))

    def _save(self, save: Callable[[], T], requested: bool = False) -> T | None:
        """Save, but skip periodic saves while steps are non-finite: a state just before a failure is no good place to
        resume from. Requested saves happen (`requested`), unless the weights themselves are non-finite."""
        if not self.reporter.nonfinite_steps:
            return save()
        step = self.train_state.progress.step
        if not requested:
            self.context.warn(f"nothing is saved at step {step}: its loss or gradient is not finite")
            return None
        if not all(bool(tensor.isfinite().all()) for tensor in self.trainable.state_dict().values()):
            raise Failed(f"the weights are not finite at step {step}", nonfinite_hint(self.context.settings))
        return save()

    def _save_before_exit(self, consistent: bool) -> None:
        """Save in the main process, which exits in mid-step; `consistent`: the weights are those of the last step."""
        if consistent:
            with self._stream_of_last_step():
                self._save_in_emergency()
        remedy = self.context.emergency_advice() or SAVED_BEFORE
        self.context.emit("failed", error="SIGTERM during a step that took too long to finish", remedy=remedy)

    def _stream_of_last_step(self) -> AbstractContextManager[object]:
        """Return a stream that waits for the last complete step and for nothing queued since, which may be a collective
        that never ends."""
        if not self.updated:
            return nullcontext()
        stream = torch.cuda.Stream(self.context.device)
        stream.wait_event(self.updated)
        return torch.cuda.stream(stream)

    def _save_in_emergency(self) -> None:
        """Save the state of the last complete step before an error ends the run."""
        progress, complete = self.train_state.progress, self.complete
        if complete.step == self.first or self.reporter.nonfinite_steps:  # nothing new, or diverging
            return
        if self.trainable.shards:  # other processes may be gone, and this one has only its own shard
            steps = complete.step - (self.context.last_state[0] if self.context.last_state else self.first)
            if steps and self.context.is_main:
                self.context.warn(
                    f"save_state: progress since the last state (steps: {steps}) is lost: with FSDP no single process "
                    "can save a state. Lower save_every_n_steps to lose less"
                )
            return
        progress.step, progress.epoch, progress.batch = complete.step, complete.epoch, complete.batch
        try:
            if self.train_state.is_finite():
                self.context.emergency_state = self.saver.save_in_emergency()
        except Exception as error:  # the GPU may be lost, and the weights with it
            why = brief(error, self.context.settings)
            self.context.warn(f"the state of step {progress.step} could not be saved: {why}")

    def _between_steps(self, do: Callable[[], object], *, due: bool, saves: bool = False) -> None:
        """Do what is due, outside of the step's timing and only after all losses so far are known to be finite."""
        if not due:
            return
        self.reporter.flush()
        averages = optimizers.is_schedule_free(self.train_state.optimizer)  # they replace the weights meanwhile
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

    def _take_seed(self, saved: SavedState) -> None:
        """Keep the seed of the state, so that a resumed run draws what it would have drawn."""
        wanted = self.options.seed
        if wanted is not None and wanted != saved.seed:
            self.context.warn(f"seed: {wanted} is ignored; a resumed run keeps the seed of its state, {saved.seed}")
        self.context.seed = saved.seed

    def _checkpoint_gradients(self) -> None:
        self.family.checkpoint_gradients(self.training_data.components.denoiser, self.context.settings)
        for encoder in compress(self.training_data.components.text_encoders, self.training_data.trains_encoder):
            encoder.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]

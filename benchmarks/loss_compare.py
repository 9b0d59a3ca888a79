"""Train a miniature with the code of two commits, and compare the losses of each step and the saved files.

python -m benchmarks.loss_compare main HEAD
python -m benchmarks.loss_compare main                # with the working tree as it is, uncommitted changes included
python -m benchmarks.loss_compare v1.0.0 main --family sdxl --full --steps 50 --compile --optimizer_type AdamW8bit

Both train the same model on the same images with the same seed: those of the demo, made by the code that runs this.
The exit code is 0 if all losses and all saved tensors are equal, 1 if not, 2 if a commit cannot be used. Further flags
are passed to the training scripts.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from sd_scripts import demo
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for
from sd_scripts.tools.timed_run import ROOT

WORKING_TREE = "working tree"


class CannotTrain(Exception):
    """Raised with a sentence if there is nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run left behind."""

    losses: list[float]
    saved: Path


@dataclass(frozen=True, kw_only=True)
class Comparison:
    before: Trained
    after: Trained

    @property
    def differences(self) -> list[float]:
        """Return how far the losses of each step are apart; a step that one run lacks is infinitely far."""
        steps = max(len(self.before.losses), len(self.after.losses))
        padded = (run.losses + [math.inf] * (steps - len(run.losses)) for run in (self.before, self.after))
        return [_apart(a, b) for a, b in zip(*padded, strict=True)]

    @property
    def differing_tensors(self) -> list[str]:
        """Return the names of saved tensors that are not the same, bit by bit, in both files."""
        before, after = load_file(self.before.saved), load_file(self.after.saved)
        return sorted(
            name
            for name in before.keys() | after.keys()
            if name not in before or name not in after or not _same_bits(before[name], after[name])
        )

    def table(self, names: Sequence[str]) -> Iterator[str]:
        width = max(12, *map(len, names))
        yield " ".join(["step".rjust(5), *(name.rjust(width) for name in names), "difference".rjust(12)])
        for i, difference in enumerate(self.differences):
            losses = (run.losses[i] if i < len(run.losses) else math.nan for run in (self.before, self.after))
            cells = (f"{loss:{width}.6f}" for loss in losses)
            yield " ".join([f"{i + 1:5}", *cells, f"{difference:12.3g}"])


def _apart(a: float, b: float) -> float:
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return math.inf if math.isnan(a) or math.isnan(b) else 0.0 if a == b else abs(a - b)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def resolve(commit: str) -> str:
    """Return the hash of a commit, which may be named by a branch, a tag or the like."""
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if found.returncode:
        raise CannotTrain(f"'{commit}' is not a commit of this repository")
    return found.stdout.strip()


@contextmanager
def checked_out(commit: str | None, folder: Path) -> Iterator[Path]:
    """Yield a folder with the files of a commit, or the project folder itself for None."""
    if commit is None:
        yield ROOT
        return
    made = _git("worktree", "add", "--detach", "--quiet", str(folder), commit)
    if made.returncode:
        raise CannotTrain(f"git cannot check out {commit}: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


def train(source: Path, name: str, script: str, config: Path, output: Path, flags: Sequence[str]) -> Trained:
    """Train with the code in `source`, and return the losses and the saved file."""
    program = source / "sd_scripts" / script
    if not program.is_file():
        raise CannotTrain(f"{name} has no sd_scripts/{script}")
    run = RunFolder(output / "run")
    own = ["--output_dir", str(output), "--run_dir", str(run.path)]
    command = [sys.executable, str(program), "--config_file", str(config), *flags, *own]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(source)}  # sums in the same order
    ended = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    saved = sorted(output.glob("*.safetensors"))
    losses = [float(event["loss"]) for event in run.events() if event.get("kind") == "step"]
    if ended.returncode or not saved or not losses:
        printed = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        raise CannotTrain(f"{name} did not train (exit code {ended.returncode}): {printed}")
    return Trained(losses=losses, saved=saved[-1])


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], usage="%(prog)s COMMIT [COMMIT] [flags]", allow_abbrev=False
    )
    parser.add_argument("before", metavar="COMMIT")
    parser.add_argument("after", metavar="COMMIT", nargs="?", help="default: the working tree")
    parser.add_argument("--family", choices=demo.FAMILIES, default="flux", help="default: flux")
    parser.add_argument("--full", action="store_true", help="train the whole model instead of a LoRA")
    parser.add_argument("--steps", type=int, default=10, help="default: 10")
    arguments, flags = parser.parse_known_args(argv)
    names = (arguments.before, arguments.after or WORKING_TREE)
    method = "full" if arguments.full else "lora"
    script = script_for(arguments.family, method).file
    steps = ["--max_train_steps", str(arguments.steps), "--no-compile", *flags]
    runs = list[Trained]()
    with tempfile.TemporaryDirectory(prefix="loss_compare-") as temporary:
        folder = Path(temporary)
        try:
            commits = [resolve(arguments.before), arguments.after and resolve(arguments.after)]
            config = demo.make_untrained(folder / "demo", arguments.family, method)
            for number, commit in enumerate(commits):
                with checked_out(commit, folder / f"code{number}") as source:
                    print(f"Training with {names[number]}", file=sys.stderr)
                    runs.append(train(source, names[number], script, config, folder / f"output{number}", steps))
        except CannotTrain as error:
            print(error, file=sys.stderr)
            return 2
        return report(Comparison(before=runs[0], after=runs[1]), names)


def report(comparison: Comparison, names: Sequence[str]) -> int:
    """Print a comparison; return 0 if there is no difference, else 1."""
    print("\n".join(comparison.table(names)))
    largest, tensors = max(comparison.differences), comparison.differing_tensors
    print(f"Largest difference of the losses: {largest:.3g}")
    print(f"Saved tensors that differ: {len(tensors)}{f', such as {tensors[0]}' if tensors else ''}")
    return int(largest > 0 or bool(tensors))


if __name__ == "__main__":
    sys.exit(main())

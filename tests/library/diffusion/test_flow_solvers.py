"""Solvers of flow matching, against numbers of the official code of Wan and against diffusers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

from sd_scripts.library.diffusion.flow_solvers import DPMSolver, Solver, UniPC, make_solver

TABLES = json.loads((Path(__file__).parents[2] / "reference/wan.json").read_text())["sigmas"]
CASES = {"n6_shift5": (6, 5.0), "n10_shift3": (10, 3.0), "n4_shift12": (4, 12.0)}
"""Name of a table -> steps and shift."""
START = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)


def velocity(latents: Tensor, sigma: float) -> Tensor:
    return 0.4 * latents - 0.7 * sigma + 0.1


def path_of(solver: Solver) -> list[list[float]]:
    """Return the latents after each step."""
    latents, path = START, []
    for sigma in solver.sigmas[:-1]:
        latents = solver.step(latents, velocity(latents, sigma))
        path.append(latents.tolist())
    return path


@pytest.mark.parametrize("name", CASES)
def test_unipc_takes_the_steps_of_the_official_code_and_of_diffusers(name: str) -> None:
    official, diffusers = TABLES[name]["official_unipc"], TABLES[name]["diffusers_unipc"]
    solver = make_solver("unipc", *CASES[name])
    assert solver.sigmas == pytest.approx(official["sigmas"], abs=1e-6)
    torch.testing.assert_close(path_of(solver), official["toy"], rtol=0, atol=2e-6)
    torch.testing.assert_close(path_of(UniPC(diffusers["sigmas"])), diffusers["toy"], rtol=0, atol=2e-6)


def test_the_other_solvers_have_the_sigmas_of_the_official_code() -> None:
    for name, case in CASES.items():
        for solver in ("dpm++", "euler"):
            assert make_solver(solver, *case).sigmas == pytest.approx(TABLES[name]["dpmpp_sigmas"], abs=1e-6)


def test_dpm_solver_takes_the_steps_of_diffusers() -> None:
    sigmas = make_solver("dpm++", 6, 5.0).sigmas
    scheduler: Any = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    scheduler.set_timesteps(6)
    scheduler.sigmas = torch.tensor(sigmas, dtype=torch.float64)
    scheduler._step_index = 0
    latents, path = START, []
    for sigma, t in zip(sigmas[:-1], scheduler.timesteps, strict=True):
        latents = scheduler.step(velocity(latents, sigma), t, latents).prev_sample
        path.append(latents.tolist())
    torch.testing.assert_close(path_of(DPMSolver(sigmas)), path, rtol=0, atol=1e-6)

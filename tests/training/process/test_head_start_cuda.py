"""The CUDA context that is made before PyTorch is imported, on a GPU."""

import subprocess
import sys

import pytest
import torch

from tests.support.suite.fresh import found_by_processes

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its driver makes the context"),
]

CODE = """
import ctypes, os
from sd_scripts.training.process.head_start import make_cuda_context
assert make_cuda_context() == 0
cuda = ctypes.CDLL("libcuda.so.1")
active, flags, before, now = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
assert active.value == 1
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(before), 0)
import torch
x = torch.randn(64, 64, device="cuda")
assert torch.isfinite(x @ x).all()
cuda.cuCtxGetCurrent(ctypes.byref(now))
assert now.value == before.value
"""


def test_pytorch_uses_the_context_that_was_made_before_it_was_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=found_by_processes(), check=False
    )
    assert done.returncode == 0, done.stderr

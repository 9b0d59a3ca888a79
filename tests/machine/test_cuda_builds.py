"""Which CUDA build of PyTorch runs on a machine."""

import pytest

from sd_scripts.machine.cuda_builds import choose


@pytest.mark.parametrize(
    ("driver", "capabilities", "cuda"),
    [
        ("595.1", [(9, 0)], "13.0"),
        ("580.65.06", [], "13.0"),
        ("579.9", [], "12.6"),
        ("525.60.13", [(8, 6)], "12.6"),
        ("524", [(8, 6)], None),
        ("580.65.06", [(6, 1), (8, 9)], "12.6"),  # it runs on both
        ("580.65.06", [(6, 1), (12, 0), (12, 0)], "13.0"),  # none runs on all
        ("575.57", [(12, 0)], None),
        ("470.82", [(3, 5)], None),
    ],
)
def test_the_newest_build_that_runs_on_most_gpus_is_chosen(driver, capabilities, cuda) -> None:
    build = choose(driver, capabilities).build
    assert (build and build.cuda) == cuda

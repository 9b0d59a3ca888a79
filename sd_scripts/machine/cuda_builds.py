"""Which CUDA build of the pinned PyTorch runs here: setup installs it, and the doctor checks for it.

Only the standard library: setup runs this before anything is installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sd_scripts.machine import nvidia
from sd_scripts.machine.nvidia import Capability


@dataclass(frozen=True, kw_only=True)
class CudaBuild:
    cuda: str
    least_driver: int
    """Drivers run all minor versions of their CUDA and of older ones."""
    least_capability: Capability
    first_unknown_capability: Capability | None = None
    """GPUs from this compute capability on are newer than the build."""

    @property
    def index(self) -> str:
        """Return the package index that has this build."""
        return f"https://download.pytorch.org/whl/cu{self.cuda.replace('.', '')}"

    def supports(self, capability: Capability) -> bool:
        beyond = self.first_unknown_capability
        return self.least_capability <= capability and (beyond is None or capability < beyond)


DEFAULT = CudaBuild(cuda="13.0", least_driver=nvidia.LEAST_DRIVER, least_capability=(7, 5))
"""The build that PyPI has for Linux."""
BUILDS = (
    DEFAULT,
    CudaBuild(cuda="12.6", least_driver=525, least_capability=(5, 0), first_unknown_capability=(10, 0)),
)
"""Builds of PyTorch 2.13, the preferred one first: the GPUs from its RELEASE.md, the drivers from NVIDIA's CUDA
compatibility guide."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    driver: str
    build: CudaBuild | None
    """None: the driver runs no build on these GPUs."""
    reason: str = ""
    """Why it is not the default."""


def choose(driver: str, capabilities: Sequence[Capability] = ()) -> Choice:
    """Return the build that runs with this driver on most of the GPUs; without capabilities, the driver decides."""
    major = int(driver.partition(".")[0])
    usable = [build for build in BUILDS if _gpus(build, capabilities)]
    runnable = [build for build in usable if build.least_driver <= major]
    if not runnable:
        missed = min(usable or BUILDS, key=lambda build: build.least_driver)
        return Choice(driver=driver, build=None, reason=_needs(missed))
    build = max(runnable, key=lambda build: _gpus(build, capabilities))
    if build is DEFAULT:
        return Choice(driver=driver, build=build)
    if major < DEFAULT.least_driver:
        return Choice(driver=driver, build=build, reason=_needs(DEFAULT))
    oldest = ".".join(map(str, min(capabilities)))
    reason = f"CUDA {DEFAULT.cuda} does not support compute capability {oldest}"
    return Choice(driver=driver, build=build, reason=reason)


def choose_here() -> Choice | None:
    """Return the choice for this machine; None without an NVIDIA GPU. Raises ValueError as `nvidia.query` does."""
    gpus = nvidia.gpus()
    return choose(gpus[0].driver, nvidia.capabilities()) if gpus else None


def _gpus(build: CudaBuild, capabilities: Sequence[Capability]) -> int:
    """Return how many of the GPUs a build supports; 1 if they are not known."""
    return sum(map(build.supports, capabilities)) if capabilities else 1


def _needs(build: CudaBuild) -> str:
    return f"CUDA {build.cuda} needs driver {build.least_driver} or newer"

"""Of these, only `launch` is stood in for."""

from pathlib import Path

import accelerate

__path__ += [str(Path(folder) / "commands") for folder in accelerate.__path__[1:]]

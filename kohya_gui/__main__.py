"""Start the web GUI: `sd-scripts-studio`, `python gui.py` or `python -m kohya_gui`."""

import sys
from collections.abc import Sequence

from kohya_gui import doctor


def main(argv: Sequence[str] | None = None) -> int:
    flags = sys.argv[1:] if argv is None else argv
    if flags[:1] == ["--doctor"]:  # before imports that fail in a broken environment
        return doctor.run(flags[1:])
    from kohya_gui import command

    return command.main(flags)


if __name__ == "__main__":
    sys.exit(main())

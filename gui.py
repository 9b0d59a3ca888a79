"""Start the web GUI: `python gui.py`. `python gui.py --help` lists the flags."""

import sys

from kohya_gui.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

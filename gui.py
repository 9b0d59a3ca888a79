"""Opens the GUI in the browser: `python gui.py`. See `python gui.py --help` for the rest."""

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kohya_gui.tabs import TABS

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument(
        "--listen", default="127.0.0.1", metavar="ADDRESS", help="address to serve on; default: this machine only"
    )
    made.add_argument(
        "--server_port", type=int, default=0, metavar="PORT", help="default: the first free one from 7860"
    )
    made.add_argument("--username", default="", help="name to log in with")
    made.add_argument("--password", default="", help="needed for --share and for other addresses than this machine's")
    made.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
    made.add_argument("--inbrowser", action="store_true", help="open the browser")
    made.add_argument("--headless", action="store_true", help="never open a browser, whatever else is said")
    made.add_argument("--root_path", default="", metavar="PATH", help="path of the page behind a reverse proxy")
    made.add_argument("--config", type=Path, metavar="FILE", help="TOML, or JSON of kohya_ss, to open in the page")
    made.add_argument(
        "--insecure",
        action="store_true",
        help="serve to others without a password; anyone who reaches the page can run programs here",
    )
    made.add_argument("--print-command", action="store_true", help="print the training command of --config and end")
    made.add_argument("--tab", choices=list(TABS), help="which training --config is for; default: as the file tells")
    return made


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def refusal(flags: argparse.Namespace) -> str | None:
    """Why the page must not be served like that."""
    if bool(flags.username) != bool(flags.password):
        return "--username and --password go together: give both or neither"
    open_to_others = flags.share or not is_loopback(flags.listen)
    if open_to_others and not flags.password and not flags.insecure:
        how = "--share" if flags.share else f"--listen {flags.listen}"
        return f"{how} opens the page to others: give --username and --password, or say --insecure"
    if flags.config and not flags.config.is_file():
        return f"--config: there is no file {flags.config}"
    if flags.print_command and not flags.config:
        return "--print-command needs --config FILE"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(argv)
    if why := refusal(flags):
        print(why, file=sys.stderr)
        return 2
    if flags.print_command:
        from kohya_gui.print_command import print_command

        return print_command(flags.tab, flags.config)
    return serve(flags)


def serve(flags: argparse.Namespace) -> int:
    # imported late: --help and a refusal answer at once
    from kohya_gui.app import build
    from kohya_gui.theme import look
    from sd_scripts.runs.store import RunStore

    try:
        build(RunStore(), flags.config, flags.tab).launch(
            server_name=flags.listen,
            server_port=flags.server_port or None,
            auth=(flags.username, flags.password) if flags.password else None,
            share=flags.share,
            inbrowser=flags.inbrowser and not flags.headless,
            root_path=flags.root_path or None,
            ssr_mode=False,
            footer_links=[],
            show_error=True,
            **look(),
        )
    except OSError as error:  # the port is taken, or the address is not of this machine
        print(f"--listen {flags.listen} --server_port {flags.server_port}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

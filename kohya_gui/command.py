"""The flags of the web GUI, and how it is served with them."""

import argparse
import html
import ipaddress
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kohya_gui import demo, doctor
from kohya_gui.access import credentials
from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.access.login_throttle import LoginLog
from kohya_gui.access.sessions import Credential, Sessions
from kohya_gui.tabs import TABS
from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.machine import garbage_collection
from sd_scripts.runs.store import state_folder

if TYPE_CHECKING:  # Gradio takes seconds to import; --help, errors in flags and --print-command need none
    from gradio.routes import App

    from kohya_gui.access.auth import AccessPolicy

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Start the web GUI.")
    add = made.add_argument
    add("--listen", default="127.0.0.1", metavar="ADDRESS", help="address to listen on; default: this machine only")
    add(
        "--server_port",
        type=int,
        default=0,
        metavar="PORT",
        help="port to listen on; default: the first free one from 7860",
    )
    add("--username", default="", help="login name")
    add(
        "--password",
        nargs="?",
        const=credentials.ASK,
        metavar="WORD",
        help="login password, required by --share and by addresses beyond this machine; prompted for without WORD. "
        "Prefer STUDIO_PASSWORD in the environment or --password_file: the process list shows WORD to every account",
    )
    add("--password_file", type=Path, metavar="FILE", help="file whose first line is the password")
    add(
        "--token",
        nargs="?",
        const=credentials.GENERATED,
        metavar="WORD",
        help="token in the printed address if no password is set; STUDIO_TOKEN in the environment works too. Default: "
        "generated once and kept in the state folder; without WORD, --listen serves to others with that one",
    )
    add(
        "--no-token",
        action="store_true",
        help="let every account of this machine in, for use behind a proxy with its own login",
    )
    add("--share", action="store_true", help="create a public link through Gradio's servers")
    add("--inbrowser", action="store_true", help="open the browser")
    add("--headless", action="store_true", help="never open a browser; overrides --inbrowser")
    add("--root_path", default="", metavar="PATH", help="path or URL of the page behind a reverse proxy")
    add(
        "--allowed_path",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder the page may read and write when served to others, in addition to the home folder and the "
        "current one; repeatable",
    )
    add(
        "--find_runs",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="output folder, or a folder of several, whose runs are added back to the list if it lost them; repeatable",
    )
    add("--config", type=Path, metavar="FILE", help="TOML or kohya_ss JSON file to open in the page")
    add(
        "--insecure",
        action="store_true",
        help="serve to others without a password; anyone who can reach the page can run programs on this machine",
    )
    add("--print-command", action="store_true", help="print the training command of --config and exit")
    add(
        "--doctor",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="check this machine, print problems and remedies, and exit; --doctor --help lists its flags",
    )
    add(
        "--demo",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="train on a miniature, without a model to download: --demo kontext; --demo --help lists its flags",
    )
    add("--tab", choices=list(TABS), help="tab that --config is for; default: detected from the file")
    return made


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def open_to_others(flags: argparse.Namespace) -> bool:
    """Return whether the page is served beyond this machine."""
    return flags.share or not is_loopback(flags.listen)


def refusal(flags: argparse.Namespace) -> str | None:
    """Return why the page must not be served with these flags, or None."""
    if why := credentials.refusal(flags):
        return why
    protected = credentials.has_password(flags) or credentials.has_token(flags)
    if open_to_others(flags) and not protected and not flags.insecure:
        how = "--share" if flags.share else f"--listen {flags.listen}"
        return f"{how} opens the page to others: set --username and --password, or --token, or pass --insecure"
    if flags.config and not flags.config.is_file():
        return f"--config: file not found: {flags.config}"
    for name in ("allowed_path", "find_runs"):
        if missing := [folder for folder in getattr(flags, name) if not folder.expanduser().is_dir()]:
            return f"--{name}: folder not found: {missing[0]}"
    if flags.print_command and not flags.config:
        return "--print-command requires --config FILE"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(argv)
    if flags.doctor is not None:
        return doctor.run(flags.doctor)
    if flags.demo is not None:
        return demo.run(flags.demo)
    if why := refusal(flags):
        print(why, file=sys.stderr)
        return 2
    if flags.print_command:
        from kohya_gui.print_command import print_command

        return print_command(flags.tab, flags.config)
    return serve(flags)


def credential(flags: argparse.Namespace) -> Credential | None:
    """Return the credential that opens the page; None where none is needed."""
    if credentials.has_password(flags):
        return Credential("password", credentials.password(flags), flags.username)
    if flags.no_token or (open_to_others(flags) and not credentials.has_token(flags)):  # only reached with --insecure
        return None
    return Credential("token", credentials.token(flags, state_folder()))


def access(flags: argparse.Namespace, opens: Credential | None) -> "AccessPolicy":
    """Return who is let in, and by which host names the page may be reached.

    A foreign name pointed at this machine (DNS rebinding) is refused if every legitimate name is known. If a
    proxy serves the page under an unknown name, the session cookie keeps others out; without one, names are checked.
    """
    from kohya_gui.access.auth import OWN_NAMES, AccessPolicy

    others, shown = open_to_others(flags), urlsplit(flags.root_path)
    listen = f"[{flags.listen}]" if ":" in flags.listen else flags.listen
    names = {*OWN_NAMES, listen, shown.hostname or "localhost", *(machine_names() if others else ())}
    unknown = opens is not None and (opens.kind == "password" or others or (flags.root_path and not shown.netloc))
    return AccessPolicy(
        sessions=Sessions(state_folder() / "sessions", opens) if opens else None,
        names=() if unknown else tuple(names),
        any_address=others,
        outside=shown.netloc,
        prefix=shown.path.rstrip("/"),
        behind_proxy=bool(flags.share or flags.root_path),
        log=LoginLog(state_folder() / "logins.log"),
    )


def machine_names() -> set[str]:
    """Return the names of this machine in the local network."""
    name = socket.gethostname().lower()
    return {name, f"{name.partition('.')[0]}.local"}


def allowed_paths(flags: argparse.Namespace) -> AllowedPaths:
    """Return where the page may read and write: anywhere, or, served to others, in the folders known at startup."""
    if not open_to_others(flags):
        return EVERYWHERE
    named = [*flags.allowed_path, *([flags.config] if flags.config else [])]
    return AllowedPaths.within([Path.home(), Path.cwd(), state_folder(), *named])


@contextmanager
def bypass_proxies(address: str) -> Iterator[None]:
    """Bypass the configured HTTP proxy for this machine: launch() checks its own server through it."""
    names = ("no_proxy", "NO_PROXY")  # the lower-case one wins where both are set
    before = {name: os.environ[name] for name in names if name in os.environ}
    spared = [*before.values(), "localhost", "127.0.0.1", "::1", address]
    os.environ.update(dict.fromkeys(names, ",".join(spared)))
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def open_page(flags: argparse.Namespace, wait: bool = True) -> "App":
    """Serve the page until the process is terminated or, without `wait`, in a thread."""
    opens = credential(flags)
    prepare_state_folder()
    with garbage_collection.importing():
        from kohya_gui.app import build
        from kohya_gui.form.field_links import FieldLinks
        from kohya_gui.runs.past_runs import why_not
        from kohya_gui.server import lean_page, studio_routes
        from kohya_gui.settings.search_index import SettingsIndex
        from kohya_gui.theme import look, scripts
        from sd_scripts.runs.queue import RunQueue
        from sd_scripts.runs.store import RunStore

    store = RunStore()
    for folder in flags.find_runs:
        print(f"--find_runs {folder}: {store.find(folder.expanduser())} runs added to the list")
    queue, allowed = RunQueue(store, why_not=why_not), allowed_paths(flags)
    links: dict[str, FieldLinks] = {}
    index = SettingsIndex()
    routes = [*studio_routes.routes(queue, allowed, links), *index.routes(), *lean_page.routes()]
    page = build(queue, flags.config, flags.tab, allowed, links, index)
    policy = replace(access(flags, opens), scripts=tuple(scripts()))
    with bypass_proxies(flags.listen):
        app, _, _ = page.launch(
            server_name=flags.listen,
            server_port=flags.server_port or None,
            share=flags.share,
            root_path=flags.root_path or None,
            ssr_mode=False,
            footer_links=[],
            show_error=True,
            run_history=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            app_kwargs={"middleware": [policy.middleware()], "routes": routes},
            prevent_thread_lock=True,
            quiet=True,  # the address it would print lacks the token
            _frontend=False,  # that check gives up when the page takes longer than 3 s, as on a busy machine
            **look(),
        )
    page._queue.sleep_when_free = 0.02  # seconds; Gradio would look for work 1000 times in one
    queue.open()  # only once the port is ours
    address = address_with(opens, flags.root_path if urlsplit(flags.root_path).netloc else str(page.local_url))
    print_address(address, opens)
    if flags.inbrowser and not flags.headless:
        open_browser(address)
    if wait:
        if sys.platform != "linux":  # on Linux the kernel ends TensorBoard with us
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        page.block_thread()
    return app


def prepare_state_folder() -> None:
    """Create the state folder and keep Gradio's files in it: /tmp/gradio may belong to another account."""
    private_folder(state_folder())
    if not os.environ.get("GRADIO_TEMP_DIR"):  # Gradio reads it on import
        os.environ["GRADIO_TEMP_DIR"] = str(private_folder(state_folder() / "gradio"))


def address_with(opens: Credential | None, address: str) -> str:
    """Return the address of the page, with its token if it has one."""
    whole = f"{address.rstrip('/')}/"
    return f"{whole}?token={opens.secret}" if opens and opens.kind == "token" else whole


def print_address(address: str, opens: Credential | None) -> None:
    print(f"Open in a browser: {address}", flush=True)
    if opens and opens.kind == "token":
        print("The token keeps other accounts of this machine out. It stays the same across restarts.")
    sys.stdout.flush()


def open_browser(address: str) -> None:
    """Open the address through a private redirect file: the process list shows a browser's arguments to everyone."""
    if Path("/snap/bin").is_dir():  # a snap browser cannot read files below ~/.local
        webbrowser.open(address)
        return
    leading = private_file(state_folder() / "open.html")
    leading.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
    webbrowser.open(leading.as_uri())


def serve(flags: argparse.Namespace) -> int:
    try:
        open_page(flags)
    except OSError as error:
        if error.filename:  # the state folder or a temporary one
            print(f"'{error.filename}' cannot be used: {error.strerror}", file=sys.stderr)
            return 2
        # the port is taken, or the address is not this machine's
        print(f"--listen {flags.listen} --server_port {flags.server_port}: {error}", file=sys.stderr)
        return 2
    except ValueError as error:  # the list of runs or the password cannot be read
        print(error, file=sys.stderr)
        return 2
    return 0

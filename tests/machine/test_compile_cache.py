"""The compiler cache: a folder for each kind of machine, which is shown, cleared, exported and imported whole."""

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.tools.compile_cache_routes import routes
from sd_scripts.machine import compile_cache, compile_cache_file, compile_fingerprint
from sd_scripts.machine.compile_cache import VARIABLE, cache_folder, clear, contents, in_use, own_folder, use_own_folder
from sd_scripts.machine.compile_cache_file import HEAD, export_cache, import_cache
from sd_scripts.machine.compile_fingerprint import features_in, fingerprint
from sd_scripts.tools import compile_cache as program
from tests.support.suite.fresh import needs_fork, outcome, processes

pytestmark = pytest.mark.run

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and homes of POSIX")
HASH = "c" + "ab" + "x" * 49
FILES = {
    "aotautograd/akey/entry": b"pickled",
    "aotautograd/bkey/entry": b"pickled too",
    "fxgraph/ab/fabkey/entry": b"graph",
    f"ab/{HASH}.main.so": b"\x7fELF" + bytes(range(256)) * 40,
    "triton/0/KERNEL/kernel.cubin": b"cubin",
}
LOCK = "locks/c.lock"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of this machine whose compiler has not been used, and whose environment names no folder."""
    for name, folder in (("XDG_CACHE_HOME", "cache"), ("XDG_STATE_HOME", "state"), ("LOCALAPPDATA", "local")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(compile_fingerprint.CAPABILITY, raising=False)
    return tmp_path


def fill(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, data in {**files, LOCK: b""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def held(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != LOCK}


# The folder

CPU_INFO = (
    "processor : 0\nmodel name : CPU\nflags : fpu pni sse4_2 avx2 fma md_clear {}\nbugs : avx512f\n\nprocessor : 1\n"
)


def test_the_instruction_sets_of_a_cpu_are_read_and_nothing_else() -> None:
    assert features_in(CPU_INFO.format("")) == ("avx2", "fma", "pni", "sse4_2")
    assert features_in("processor : 0\nFeatures : fp asimd sve\n") == ("asimd", "fp", "sve")
    assert features_in("") == ()


def test_a_different_cpu_torch_or_instruction_limit_has_a_different_folder(home, tmp_path, monkeypatch) -> None:
    def folder_for(more: str) -> Path:
        (tmp_path / "cpuinfo").write_text(CPU_INFO.format(more))
        compile_fingerprint.cpu_features.cache_clear()
        return own_folder()

    monkeypatch.setattr(compile_fingerprint, "CPU_INFO", tmp_path / "cpuinfo")
    try:
        avx2, also_avx2, avx512 = folder_for(""), folder_for("rep_good ibrs"), folder_for("avx512f")
        monkeypatch.setenv(compile_fingerprint.CAPABILITY, "avx2")
        limited = folder_for("avx512f")
        monkeypatch.setattr(compile_fingerprint, "torch_version", lambda: "9.9")
        other_torch = folder_for("avx512f")
    finally:
        compile_fingerprint.cpu_features.cache_clear()
    assert avx2 == also_avx2
    assert len({avx2, avx512, limited, other_torch}) == 4
    assert {folder.parent for folder in (avx2, avx512, limited, other_torch)} == {avx2.parent}


def test_patch_releases_of_python_share_compiled_code() -> None:
    assert fingerprint().python == ".".join(platform.python_version_tuple()[:2])


def test_the_version_of_pytorch_is_read_without_importing_it() -> None:
    import torch

    assert compile_fingerprint.torch_version() == torch.__version__


def answer_of(work: Callable[[], str], file: Path) -> str:
    """What `work` returns in a fresh process with today's environment."""
    process = processes().Process(target=_answer, args=({**os.environ}, work, file))
    process.start()
    assert outcome(process) == 0
    return file.read_text()


def _answer(environment: dict[str, str], work: Callable[[], str], file: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    file.write_text(work())


def the_compilers_folder() -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    use_own_folder()
    return cache_dir()


@POSIX
@needs_fork
def test_a_process_that_compiles_and_its_children_use_a_private_folder(home: Path) -> None:
    assert Path(answer_of(the_compilers_folder, home / "answer")) == own_folder()
    assert own_folder().stat().st_mode & 0o777 == 0o700
    assert own_folder().is_relative_to(home)


def test_a_folder_that_the_user_names_is_used_unchanged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(home / "mine"))
    use_own_folder()
    assert os.environ[VARIABLE] == str(cache_folder()) == str(home / "mine")
    assert contents().chosen_by_user
    monkeypatch.setenv(VARIABLE, str(own_folder()))  # as passed to our child processes
    assert not contents().chosen_by_user


@POSIX
def test_inductor_gets_a_folder_that_it_can_compile_into(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "my cache"))
    assert " " not in str(own_folder())
    assert own_folder() == own_folder()
    assert compile_cache.folder_problem() == ""
    monkeypatch.setenv(VARIABLE, str(home / "my cache"))
    assert compile_cache.folder_problem() == (
        f"{VARIABLE}: inductor cannot compile into '{home / 'my cache'}', since the path contains a space or a "
        "quotation mark; choose another folder, or unset the variable"
    )


# Its contents, and clearing it


def test_its_contents_are_counted(home: Path) -> None:
    assert (contents().files, contents().graphs, contents().newest) == (0, 0, None)
    fill(own_folder())
    os.utime(own_folder() / "aotautograd/akey/entry", (1000, 1000))
    found = contents()
    assert (found.graphs, found.files, found.oldest) == (2, len(FILES) + 1, 1000.0)
    assert found.size == sum(map(len, FILES.values()))


def test_clearing_leaves_other_programs_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(home / "mine")
    for name in ("notes.txt", "models/a.safetensors", "ab2/c", "de/image.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"mine")
    (folder / "xx").symlink_to(home / "elsewhere")
    monkeypatch.setenv(VARIABLE, str(folder))
    assert clear() == sum(map(len, FILES.values()))
    assert held(folder) == dict.fromkeys(("notes.txt", "models/a.safetensors", "ab2/c", "de/image.png"), b"mine")
    assert (folder / "xx").is_symlink()
    assert clear() == 0


def test_folders_of_other_versions_are_cleared_only_on_request(home: Path) -> None:
    other = fill(own_folder().with_name("torch-1.0-0123456789ab"))
    fill(own_folder())
    assert contents().others == sum(map(len, FILES.values()))
    clear()
    assert held(other) == FILES
    clear(others=True)
    assert not other.exists()


def test_a_cache_in_use_is_neither_cleared_nor_imported_into_nor_exported(home: Path) -> None:
    fill(own_folder())
    attempts: list[Callable[[], Any]] = [clear, lambda: export_cache(home / "a"), lambda: import_cache(home / "a")]
    with in_use():
        for attempt in attempts:
            with pytest.raises(ValueError, match=r"^A training uses the compiler cache; it can be \w+( \w+)? when no"):
                attempt()
    assert held(own_folder()) == FILES
    assert clear() > 0


def test_a_killed_run_does_not_lock_the_cache(home: Path) -> None:
    fill(own_folder())
    code = "import os; from sd_scripts.machine.compile_cache import in_use; u = in_use(); u.__enter__(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False, env=os.environ)
    assert len(list((home / "state").rglob("compiling/*.json"))) == 1 or os.name != "posix"
    assert clear() > 0


# One file


def test_an_exported_cache_is_imported_whole_into_a_different_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(own_folder())
    assert export_cache(home / "a.zip").graphs == 2
    monkeypatch.setenv(VARIABLE, str(home / "elsewhere"))
    newer = {"aotautograd/ckey/entry": b"of this machine"}
    fill(home / "elsewhere", newer)
    assert import_cache(home / "a.zip").graphs == 2
    assert held(home / "elsewhere") == {**FILES, **newer}


def test_an_import_reports_the_cost_of_a_different_pytorch_location(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(own_folder())
    monkeypatch.setattr(compile_cache_file, "installed_in", lambda: ["/usr/include", "/opt/torch"])
    export_cache(home / "a.zip")
    assert import_cache(home / "a.zip").note == ""
    monkeypatch.setattr(compile_cache_file, "installed_in", lambda: ["/usr/include", "/srv/torch"])
    monkeypatch.setenv(VARIABLE, str(home / "new"))
    assert import_cache(home / "a.zip").note.startswith("Kernels for the CPU are compiled again")


def test_an_empty_cache_is_not_exported(home: Path) -> None:
    with pytest.raises(ValueError, match="The compiler cache is empty"):
        export_cache(home / "a.zip")
    assert not (home / "a.zip").exists()


MACHINES: dict[str, tuple[dict[str, Any], str]] = {
    "torch": ({"torch": "2.12.0+cu130"}, "PyTorch 2.12.0+cu130, here {here.torch}"),
    "triton": ({"triton": "1.0"}, "Triton 1.0, here "),
    "python": ({"python": "3.8"}, "Python 3.8, here {here.python}"),
    "system": ({"system": "Windows AMD64"}, "system Windows AMD64, here {here.system}"),
    "cpu": ({"cpu": ("avx_of_no_cpu",)}, "a different CPU,  with avx_of_no_cpu and without "),
    "gpu": ({"gpus": ("NVIDIA T4 7.5",)}, "GPU NVIDIA T4 7.5, here "),
}


@pytest.mark.parametrize("what", MACHINES)
def test_a_cache_of_a_different_machine_is_refused_with_the_difference(what: str, home: Path, monkeypatch) -> None:
    different, told = MACHINES[what]
    fill(own_folder())
    here = fingerprint()
    monkeypatch.setattr(compile_cache_file, "fingerprint", lambda **_: replace(here, **different))
    export_cache(home / "a.zip")
    monkeypatch.setattr(compile_cache_file, "fingerprint", fingerprint)
    monkeypatch.setenv(VARIABLE, str(home / "new"))
    with pytest.raises(ValueError, match="different machine") as refused:
        import_cache(home / "a.zip")
    assert str(refused.value).startswith(
        f"'{home / 'a.zip'}' was compiled for a different machine: {told.format(here=here)}"
    )
    assert "\n" not in str(refused.value)
    assert not (home / "new").exists()


def test_a_file_that_is_truncated_or_damaged_anywhere_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    good = (home / "a.zip").read_bytes()
    monkeypatch.setenv(VARIABLE, str(home / "new"))
    with zipfile.ZipFile(home / "a.zip") as archive:
        inside = archive.getinfo(f"ab/{HASH}.main.so").header_offset + 90
    damaged = good[:inside] + bytes([good[inside] ^ 0xFF]) + good[inside + 1 :]
    for bad in (b"", good[: len(good) // 2], good[:-1], damaged, b"x" * 100):
        (home / "bad.zip").write_bytes(bad)
        with pytest.raises(ValueError, match=r"bad\.zip' is not a compiler cache, or is damaged"):
            import_cache(home / "bad.zip")
        assert held(home / "new") == {}
        assert list((home / "new").glob("*")) + list((home / "new").glob(".*")) == []


OUTSIDE = (
    "../escaped", "aotautograd/../../escaped", "/tmp/escaped", "ab/..\\..\\escaped", "ab/C:escaped", "notes.txt", "ab",
    "locks/x.lock", "sitecustomize/x.py", "ab//x", "ab/./x",
)  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_file_that_would_land_elsewhere_is_refused(name: str, home: Path) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    with zipfile.ZipFile(home / "a.zip", "a") as archive:
        archive.writestr(name, b"evil")
    clear()
    before = sorted(home.rglob("*"))
    with pytest.raises(ValueError, match="which is not part of a compiler cache; nothing was imported"):
        import_cache(home / "a.zip")
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("part", ["\x1b[31mred", "a\nb", "a\tb", "\u202egnp", "\x7f", "a\u2028b"])
def test_a_name_with_control_characters_is_refused_and_shown_escaped(part: str, home: Path) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    with zipfile.ZipFile(home / "a.zip", "a") as archive:
        archive.writestr(f"ab/{part}", b"x")
    clear()
    with pytest.raises(ValueError, match="is not part of a compiler cache") as refused:
        import_cache(home / "a.zip")
    assert str(refused.value).isprintable()
    assert [path for path in home.rglob("*") if not path.name.isprintable()] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("graphs", value) for value in ("1e400", "NaN", "-1", "true", '"3"', "[]", "null", "2.5", "1" + "0" * 30)),
        *(("fingerprint", value) for value in ("5", "[]", "null", '"x"', '{"cpu": [[]], "gpus": 3}')),
        *(("format", value) for value in ("[1]", "{}", "1e999")),
    ],
)
def test_a_head_with_values_of_other_types_is_refused(
    name: str, value: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    with zipfile.ZipFile(home / "a.zip") as archive:
        texts = {each: archive.read(each) for each in archive.namelist()}
    head = {**json.loads(texts[HEAD]), name: "HERE"}
    with zipfile.ZipFile(home / "b.zip", "w") as archive:
        for each, text in {**texts, HEAD: json.dumps(head).replace('"HERE"', value)}.items():
            archive.writestr(each, text)
    clear()
    assert program.main(["import", str(home / "b.zip")]) == 2
    said = capsys.readouterr().err
    assert "was not exported by this version of the program" in said
    assert len(said.splitlines()) == 1
    assert held(own_folder()) == {}


def test_a_different_machine_is_named_without_control_characters(home: Path) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    with zipfile.ZipFile(home / "a.zip") as archive:
        head = json.loads(archive.read(HEAD))
    head["fingerprint"]["torch"] = "2.0\x1b[2J\nfine"
    with zipfile.ZipFile(home / "b.zip", "w") as archive:
        archive.writestr(HEAD, json.dumps(head))
        archive.writestr("ab/x", "y")
    with pytest.raises(ValueError, match="different machine") as refused:
        import_cache(home / "b.zip")
    assert str(refused.value).isprintable()


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_pipe_is_refused_without_waiting(home: Path) -> None:
    os.mkfifo(home / "pipe.zip")
    with pytest.raises(ValueError, match=r"pipe.zip' cannot be read: not a regular file"):
        import_cache(home / "pipe.zip")


def test_a_link_and_a_zip_of_something_else_are_refused(home: Path) -> None:
    fill(own_folder())
    export_cache(home / "a.zip")
    link = zipfile.ZipInfo("ab/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(home / "a.zip", "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match="contains 'ab/link', which is not part"):
        import_cache(home / "a.zip")
    for head in (
        {},
        {HEAD: "{}"},
        {HEAD: "["},
        {HEAD: json.dumps({"format": 1, "graphs": 1, "fingerprint": {"cpu": 3}})},
    ):
        with zipfile.ZipFile(home / "b.zip", "w") as archive:
            for name, text in {**head, "ab/x": "y"}.items():
                archive.writestr(name, text)
        with pytest.raises(ValueError, match="was not exported by this version of the program"):
            import_cache(home / "b.zip")


# The command and the page


def test_the_command_shows_clears_exports_and_imports(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(own_folder())
    file = str(home / "a.zip")
    codes = [
        program.main(words) for words in (["show"], ["export", file], ["clear"], ["import", file], ["show", "--json"])
    ]
    assert codes == [0] * 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Folder   {own_folder()} (for this CPU and this version of PyTorch)"
    assert lines[1].startswith("Holds    2 graphs, 10 kB")
    assert lines[3].startswith(f"Wrote {file}: 2 graphs, ")
    assert lines[4:6] == ["Removed 10 kB", "Imported 2 graphs"]
    assert json.loads(lines[6])["graphs"] == 2
    assert program.main(["import", str(home / "none.zip")]) == 2
    assert capsys.readouterr().err == f"'{home / 'none.zip'}' cannot be read: No such file or directory\n"


def test_the_page_shows_clears_exports_and_imports(home: Path) -> None:
    fill(own_folder())
    page = TestClient(Starlette(routes=routes(AllowedPaths.within([home]))))
    assert page.get("/studio/compile-cache/file").status_code == 404
    assert page.get("/studio/compile-cache").json()["held"] == "2 graphs, 10 kB"
    assert page.post("/studio/compile-cache/export", json={}).json()["done"].startswith("Exported 2 graphs")
    (home / "down.zip").write_bytes(page.get("/studio/compile-cache/file").content)
    assert page.post("/studio/compile-cache/clear", json={}).json()["held"] == ""
    added = page.post("/studio/compile-cache/import", json={"file": str(home / "down.zip")}).json()
    assert (added["done"], added["held"]) == ("Imported 2 graphs", "2 graphs, 10 kB")
    refused = page.post("/studio/compile-cache/import", json={"file": "/etc/hostname"})
    assert (refused.status_code, "outside the allowed folders" in refused.json()["error"]) == (400, True)
    assert page.get("/studio/compile-cache/file").status_code == 404  # it was removed when it had been sent
    with in_use():
        assert page.post("/studio/compile-cache/clear", json={}).status_code == 400


def compile_something() -> str:
    import torch
    from torch._dynamo.utils import counters

    use_own_folder()
    found = torch.compile(lambda x: x.sin() + 1)(torch.zeros(8)).sum()
    return f"{found} {counters['aot_autograd']['autograd_cache_hit']} {counters['inductor']['fxgraph_cache_hit']}"


@POSIX
@pytest.mark.inductor
@needs_fork
def test_with_an_imported_cache_nothing_is_compiled(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(compile_something, home / "answer") == "8.0 0 0"
    export_cache(home / "a.zip")
    own_folder().rename(home / "gone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "another"))
    import_cache(home / "a.zip")
    before = sorted(own_folder().rglob("*.so"))
    assert before
    assert answer_of(compile_something, home / "answer") == "8.0 1 1"
    assert sorted(own_folder().rglob("*.so")) == before

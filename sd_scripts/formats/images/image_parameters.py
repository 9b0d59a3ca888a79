"""The parameters of a generated image or clip, as text in the PNG or MP4: `parameters`, which A1111 WebUI, Forge and
others write and read, and `sd_scripts`, which has the same as JSON, without loss."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from sd_scripts.formats.documents import is_utf8, parse_json

WEBUI, OURS = "parameters", "sd_scripts"
"""Keywords of the text chunks."""
SAMPLER_TITLES = {
    **{"ddim": "DDIM", "pndm": "PLMS", "lms": "LMS", "euler": "Euler", "euler_a": "Euler a", "heun": "Heun"},
    **{
        "dpm_2": "DPM2",
        "dpm_2_a": "DPM2 a",
        "dpmsolver": "DPM++ 2M",
        "dpmsolver++": "DPM++ 2M",
        "dpmsingle": "DPM++ 2S",
    },
}
"""Our sampler -> its name in the WebUI."""
FLOW_SAMPLER = "Euler"
"""Sampler of models that are trained by flow matching."""
PAIR = re.compile(r'(?:(?<=,)|^)\s{0,20}(\w[\w \-/]{1,60}):\s{0,20}("(?:\\.|[^\\"]){1,2000}"|[^,]*)(?:,|$)')
"""`Key: value,` of the last line; a value with a comma or colon is JSON text."""
LORA = re.compile(r"<lora:([^:<>]{1,300})(?::([^:<>]{0,40})(?::[^<>]{0,300})?)?>")
MOST = 100_000
"""Longest text that is read."""
LARGEST = 2**64
"""Bound of numbers that are read; seeds are the largest."""


def text_chunks(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of both chunks.

    `parameters`: prompt, negative_prompt, steps, sampler (None: flow matching), scale, guidance, seed, width, height,
    model (its name), adapters (a list of {name, strength}), frames and fps of a clip, sweep (option and value of each
    axis), and anything more, which only our own chunk has.
    """
    return {WEBUI: _webui(parameters), OURS: json.dumps(parameters, ensure_ascii=False)}


def _webui(parameters: Mapping[str, Any]) -> str:
    tags = "".join(f" <lora:{each['name']}:{each['strength']:g}>" for each in parameters.get("adapters") or ())
    sampler = parameters.get("sampler")
    name = SAMPLER_TITLES.get(sampler.removeprefix("k_"), sampler) if sampler else FLOW_SAMPLER
    values = {
        "Steps": parameters["steps"],
        "Sampler": name,
        "CFG scale": f"{parameters['scale']:g}",
        "Distilled CFG Scale": _short(parameters.get("guidance")),
        "Seed": parameters["seed"],
        "Size": f"{parameters['width']}x{parameters['height']}",
        "Frames": parameters.get("frames"),
        "FPS": _short(parameters.get("fps")),
        "Model": parameters.get("model"),
        "Version": "sd_scripts",
    }
    last = ", ".join(f"{key}: {_quoted(str(value))}" for key, value in values.items() if value is not None)
    negative = parameters.get("negative_prompt")
    lines = [f"{parameters['prompt']}{tags}", *([f"Negative prompt: {negative}"] if negative else []), last]
    return "\n".join(lines)


def _short(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if re.search(r"[,:\n]", text) else text


def read_chunks(chunks: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of `text_chunks` that the text chunks of an image contain.

    Anyone can write an image, so values that are not of the type of `text_chunks` are left out. Raises ValueError, one
    sentence, if there are no parameters.
    """
    if ours := chunks.get(OURS):
        try:
            found = parse_json(ours[:MOST])
        except ValueError:
            found = None
        if isinstance(found, dict):
            return typed(found)
    if webui := chunks.get(WEBUI):
        return typed(_read_webui(webui[:MOST]))
    raise ValueError("The image contains no parameters; it was saved without them, or by a different program")


def typed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters whose values have the type of `text_chunks`; further ones if they are texts or numbers."""
    read = {name: READERS.get(name, _plain)(value) for name, value in found.items()}
    return {name: value for name, value in read.items() if value is not None or found[name] is None}


def _text(value: object) -> str | None:
    """Return text that can be sent and saved as UTF-8."""
    if _number(value) is not None:
        return str(value)
    return value if isinstance(value, str) and is_utf8(value) else None


def _number(value: object) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and -LARGEST < value < LARGEST else None  # type: ignore[operator, return-value]


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _plain(value: object) -> Any:
    return value if isinstance(value, bool) or _number(value) is not None else _text(value)


def _files(value: object) -> list[dict[str, Any]] | None:
    """Return the adapters or control images that an image was made with."""
    if not isinstance(value, list):
        return None
    read = [
        {name: FILE_READERS.get(name, _plain)(each) for name, each in entry.items()}
        for entry in value
        if isinstance(entry, dict)
    ]
    return [{name: each for name, each in entry.items() if each is not None} for entry in read]


def _pairs(value: object) -> list[list[str]] | None:
    """Return the options that were compared, each with its value in this image."""
    pairs = value if isinstance(value, list) else []
    is_whole = all(isinstance(pair, list) and len(pair) == 2 and None not in map(_text, pair) for pair in pairs)
    return [[str(each) for each in pair] for pair in pairs] if pairs and is_whole else None


def _file(value: object) -> dict[str, Any] | None:
    return next(iter(_files([value]) or ()), None)


FILE_READERS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(("name", "path", "sha256"), _text),
    "strength": _number,
}
READERS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(("prompt", "negative_prompt", "sampler", "family"), _text),
    **dict.fromkeys(("model", "model_path", "dtype", "quantize_base"), _text),
    **dict.fromkeys(("width", "height", "steps", "seed", "frames"), _whole),
    **dict.fromkeys(("scale", "guidance", "fps", "flow_shift"), _number),
    **dict.fromkeys(("adapters", "control_images"), _files),
    **dict.fromkeys(("start_image", "end_image", "control_clip"), _file),
    "sweep": _pairs,
}


def _read_webui(text: str) -> dict[str, Any]:
    *words, last = text.strip().split("\n")
    if len(PAIR.findall(last)) < 3:  # no line of values: all of it is a prompt
        words, last = [*words, last], ""
    joined = "\n".join(words)
    prompt, _, negative = joined.partition("Negative prompt:")
    values = {key.strip(): _unquoted(value) for key, value in PAIR.findall(last)}
    found: dict[str, Any] = {
        "prompt": LORA.sub("", prompt).strip(),
        "negative_prompt": negative.strip(),
        "adapters": [{"name": name, "strength": _parsed(by, 1.0)} for name, by in LORA.findall(prompt)],
        "model": values.get("Model"),
        "sampler": _sampler(values.get("Sampler", "")),
    }
    numbers = {"steps": "Steps", "scale": "CFG scale", "guidance": "Distilled CFG Scale", "seed": "Seed"}
    numbers |= {"frames": "Frames", "fps": "FPS"}
    for name, key in numbers.items():
        number = _parsed(values.get(key, ""), None)
        found[name] = int(number) if number is not None and name in ("steps", "seed", "frames") else number
    if size := re.fullmatch(r"(\d{1,6})x(\d{1,6})", values.get("Size", "")):
        found["width"] = int(size[1])
        found["height"] = int(size[2])
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _unquoted(value: str) -> str:
    try:
        return str(parse_json(value)) if value.startswith('"') else value.strip()
    except ValueError:
        return value.strip()


def _sampler(title: str) -> str | None:
    plain = re.sub(r" (Karras|Exponential|SDE)\b.*", "", title).strip()
    return next((ours for ours, theirs in reversed(SAMPLER_TITLES.items()) if theirs == plain), None)


def _parsed(text: str, otherwise: float | None) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return otherwise
    return number if math.isfinite(number) else otherwise

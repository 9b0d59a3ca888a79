"""Options of captioning: which tags a tagger writes, and what captioners and endpoints are asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

from sd_scripts.options.spec import OptionGroup, option, optional, switch

FIELDS = ("trigger", "folder", "tags")
"""What a prompt may have in braces."""


class TaggerOptions(OptionGroup, title="Tags"):
    """Which tags are written, and in which order. Names match sd-scripts' tagger where it has the option."""

    thresh: float = option(0.35, "Confidence from which a tag is written.", within=(0.0, 1.0), label="Threshold")
    general_threshold: float | None = optional(
        "Threshold of general tags. Default: thresh.", within=(0.0, 1.0), label="General"
    )
    character_threshold: float | None = optional(
        "Threshold of characters. Default: thresh.", within=(0.0, 1.0), label="Characters"
    )
    copyright_threshold: float | None = optional(
        "Threshold of series. Default: thresh.", within=(0.0, 1.0), label="Series"
    )
    artist_threshold: float | None = optional(
        "Threshold of artists. Default: thresh.", within=(0.0, 1.0), label="Artists"
    )
    meta_threshold: float | None = optional(
        "Threshold of meta tags such as highres. Default: thresh.", within=(0.0, 1.0), label="Meta"
    )
    use_rating_tags: bool = switch("Begin with the most probable rating.", label="Rating first")
    use_rating_tags_as_last_tag: bool = switch("End with the most probable rating.", label="Rating last")
    rating_threshold: float = option(
        0.0, "Confidence from which the rating is written.", within=(0.0, 1.0), label="Rating"
    )
    tag_order: Literal["model", "confidence", "alphabetical"] = option(
        "confidence", "Order of the tags: as the model lists them, the surest first, or A to Z.", label="Order"
    )
    character_tags_first: bool = switch("Put characters before general tags.", label="Characters first")
    character_tag_expand: bool = switch(
        "Write 'name (series)' of a character as two tags, name and series.", label="Split characters"
    )
    remove_underscore: bool = option(
        True, "Write spaces for underscores, except in emoticons such as ^_^.", label="Spaces for underscores"
    )
    undesired_tags: str | None = optional("Tags that are never written, separated by commas.", label="Never these")
    always_first_tags: str | None = optional(
        "Tags that come first if the model finds them, separated by commas, such as 1girl,1boy.", label="First these"
    )
    tag_replacement: str | None = optional(
        "Tags to write differently: from,to;from,to. A backslash before , or ; makes it part of a tag.",
        label="Replace",
    )
    caption_separator: str = option(", ", "What is written between tags.", label="Separator")
    frequency_tags: bool = switch("Print how often each tag was written.", label="Print counts")

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.caption_separator.strip():
            yield "caption_separator", "has no character other than blanks; use a comma"
        if self.use_rating_tags and self.use_rating_tags_as_last_tag:
            yield "use_rating_tags_as_last_tag", "and use_rating_tags are both on; turn one off"
        try:
            replacements(self.tag_replacement or "")
        except ValueError as error:
            yield "tag_replacement", str(error)


class CaptionTextOptions(OptionGroup, title="Text"):
    """What a captioner or an endpoint is asked, and how it answers."""

    prompt: str | None = optional(
        "What the model is asked; {trigger}, {folder} and {tags} stand for the trigger word, the name of the concept "
        "folder and the caption that is there. Florence-2 takes its task, such as <MORE_DETAILED_CAPTION>, BLIP and "
        "GIT the beginning of the caption. Default: a prompt for the form.",
        label="Prompt",
    )
    form: Literal["auto", "prose", "tags"] = option(
        "auto",
        "Form of the text unless there is a prompt; auto is a sentence for a family whose captions CLIP reads, else a "
        "paragraph.",
        label="Form",
    )
    prefix: str | None = optional("Text before each caption.", label="Prefix")
    postfix: str | None = optional("Text after each caption.", label="Postfix")
    max_length: int = option(256, "Longest answer in tokens.", within=(1, 4096), label="Maximum tokens")
    min_length: int = option(0, "Shortest answer in tokens.", within=(0, 4096), label="Minimum tokens")
    num_beams: int = option(1, "Beams of the search; more are slower.", within=(1, 32), label="Beams")
    temperature: float = option(
        0.0, "0 takes the most probable words; higher varies more.", within=(0.0, 2.0), label="Temperature"
    )
    top_p: float = option(
        0.9,
        "With a temperature, draw from the words that have this share of the probability.",
        within=(0.01, 1.0),
        label="Top p",
    )
    seed: int = option(0, "Seed of the draws.", within=(0, 2**32 - 1), label="Seed")
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = option(
        "auto", "Precision of the captioner; auto is bf16 on a GPU and fp32 on the CPU.", label="Precision"
    )
    load_in_8bit: bool = switch(
        "Load the captioner in 8 bits with bitsandbytes: less memory, but slower; needs a GPU.", label="8 bits"
    )
    compile: bool = switch(
        "Compile the captioner: its first batch takes a minute longer, all others a third of the time; needs a GPU.",
        label="Compile",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.min_length > self.max_length:
            yield "min_length", f"{self.min_length} is above max_length, {self.max_length}"
        if self.prompt and (unknown := unknown_fields(self.prompt)):
            yield "prompt", f"{{{unknown[0]}}} is not known; use {', '.join(f'{{{name}}}' for name in FIELDS)}"


class EndpointOptions(OptionGroup, title="Endpoint"):
    """A server with OpenAI's interface. The key comes from the variable OPENAI_API_KEY, or is asked for."""

    endpoint: str | None = optional(
        "Address of the server up to /v1, such as http://localhost:11434/v1 of Ollama. Images are sent there.",
        label="Address",
        placeholder="http://localhost:11434/v1",
    )
    ask_api_key: bool = switch("Ask for the key in the terminal.", label="Ask for the key")
    image_side: int = option(
        1024, "Longest side, in pixels, of the images that are sent.", within=(64, 4096), label="Image side"
    )
    timeout: float = option(120.0, "Seconds that an answer may take.", within=(1.0, 3600.0), label="Timeout")
    retries: int = option(
        3, "Further attempts when the server is busy or does not answer.", within=(0, 20), label="Retries"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.endpoint and (why := address_problem(self.endpoint)):
            yield "endpoint", why


def address_problem(address: str) -> str:
    """Return why an address is not a server's; empty if it may be."""
    try:
        parts = urlsplit(address)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or parts.scheme not in ("http", "https") or not parts.hostname or not address.isprintable():
        return f"{address!r} is not a web address; write one such as http://localhost:11434/v1"
    if parts.username is not None or parts.password is not None:
        return "contains a password; pass the key in the variable OPENAI_API_KEY"
    return "contains ? or #; leave out what follows /v1" if parts.query or parts.fragment else ""


def unknown_fields(prompt: str) -> list[str]:
    """Return the names in braces that stand for nothing."""
    inside = [part.partition("}")[0] for part in prompt.split("{")[1:] if "}" in part]
    return [name for name in inside if name.isidentifier() and name not in FIELDS]


def listed_tags(text: str | None) -> list[str]:
    """Return the tags of a text with commas between them."""
    return [tag for part in (text or "").split(",") if (tag := part.strip())]


def replacements(text: str) -> dict[str, str]:
    """Read "from,to;from,to". Raises ValueError to follow the option's name."""
    pairs: dict[str, str] = {}
    for pair in _split(text, ";"):
        if not pair.strip():
            continue
        words = [word.strip() for word in _split(pair, ",")]
        if len(words) != 2 or not words[0]:
            raise ValueError(f"{pair.strip()!r} is not of the form from,to")
        pairs[_plain(words[0])] = _plain(words[1])
    return pairs


def _split(text: str, sign: str) -> list[str]:
    """Split at a sign that no backslash precedes; the backslashes stay."""
    parts = [""]
    escaped = False
    for letter in text:
        if letter == sign and not escaped:
            parts.append("")
        else:
            parts[-1] += letter
        escaped = letter == "\\" and not escaped
    return parts


def _plain(text: str) -> str:
    return text.replace("\\,", ",").replace("\\;", ";")

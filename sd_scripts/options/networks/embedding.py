"""Options of textual inversion: a new token whose embeddings are trained, alone or together with a LoRA."""

from collections.abc import Iterable, Iterator
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

MOST_VECTORS = 75
"""Tokens that a text encoder reads at a time."""
OBJECT_TEMPLATES = tuple(
    f"{article} {view} of {of} {{}}"
    for of in ("a", "the", "one", "my")
    for article, view in (
        *(("a", "photo"), ("the", "photo"), ("a", "good photo"), ("a", "bright photo"), ("a", "dark photo")),
        *(("a", "close-up photo"), ("a", "cropped photo"), ("a", "rendering")),
    )
)
"""Captions that show an object; {} is the token."""
STYLE_TEMPLATES = tuple(
    f"{article} {kind} in the style of {{}}"
    for article in ("a", "the")
    for kind in (
        *("painting", "rendering", "picture", "good painting", "bright painting", "dark painting"),
        *("close-up painting", "cropped painting", "large painting", "small painting"),
    )
)
"""The same for a style."""


class EmbeddingOptions(
    OptionGroup, title="Textual inversion", methods=("lora", "textual_inversion"), needs="learns_embeddings"
):
    """A new token whose embeddings are trained, while all other tokens stay unchanged."""

    token_string: str | None = optional(
        "The new word, which captions and sample prompts contain. It must not be a word the model already knows.",
        label="Token",
        placeholder="mycat",
        notes={
            "lora": "Trains its embeddings together with the LoRA (pivotal tuning) and saves them in a second file, "
            "with -embedding in its name."
        },
    )
    init_word: str | None = optional(
        "An existing word of similar meaning, such as cat, whose embeddings are the start. Default: random embeddings.",
        label="Start from word",
        placeholder="cat",
    )
    num_vectors_per_token: int = option(
        1,
        "Number of embeddings of the token. More can represent more detail, and use up that number of a "
        "prompt's 75 tokens.",
        label="Vectors per token",
        within=(1, MOST_VECTORS),
    )
    embedding_lr: float | None = optional(
        "Learning rate of the embeddings. Default: learning_rate. 5e-4 to 5e-3 is usual.",
        label="Embedding LR",
        within=(0.0, 1000.0),
        methods=("lora",),
    )
    weights: str | None = path_option(
        "Start from the embeddings in this file, with a new optimizer and step count. Replaces init_word.",
        label="Continue from embedding file",
    )
    use_object_template: bool = switch(
        "Train with captions such as 'a photo of a mycat' instead of the images' own. Regularisation images keep "
        "theirs.",
        label="Captions for an object",
    )
    use_style_template: bool = switch(
        "The same for a style: 'a painting in the style of mycat'.", label="Captions for a style"
    )

    @property
    def templates(self) -> tuple[str, ...]:
        """Return the captions that replace the images' own; none if those are used."""
        if not self.token_string or not (self.use_object_template or self.use_style_template):
            return ()
        chosen = OBJECT_TEMPLATES if self.use_object_template else STYLE_TEMPLATES
        return tuple(template.format(self.token_string) for template in chosen)

    def without_token(self) -> Iterator[str]:
        """Yield the names of the options that are set without a token."""
        if not self.token_string:
            for name in ("init_word", "weights", "embedding_lr", "use_object_template", "use_style_template"):
                if getattr(self, name):
                    yield name

    def check(self) -> Iterable[tuple[str, str]]:
        if self.token_string and len(self.token_string.split()) > 1:
            yield "token_string", f"{self.token_string!r} has a space; write one word"
        if self.use_object_template and self.use_style_template:
            yield "use_object_template", "cannot be combined with use_style_template; turn one of them off"


class EmbeddingFileOptions(OptionGroup, title="Embedding file", methods=("textual_inversion",)):
    """The format in which embeddings are saved."""

    save_model_as: Literal["ckpt", "pt", "safetensors"] = option(
        "safetensors", "safetensors works in every program; choose ckpt or pt only for an old one.", label="File format"
    )

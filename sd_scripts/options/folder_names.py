"""What file and folder names say about images: for the training that reads them and for the page that counts them."""

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
IMAGES_BY_PLUGIN = frozenset({".avif", ".jxl"})
"""Endings of images that some installations can read."""


def numbered(name: str) -> tuple[int, str] | None:
    """(10, "cat") of "10_cat": how often its images are seen, and what they show. None for a name of another form."""
    number, _, concept = name.partition("_")
    return (int(number), concept) if number.isdecimal() else None


def dotted(extension: str) -> str:
    """.txt, of "txt" as of ".txt"."""
    return extension if extension.startswith(".") else f".{extension}"


def is_ending(extension: str) -> bool:
    """Whether a file name can end so."""
    return bool(extension.strip()) and not any(letter in '/\\:*?"<>|' or ord(letter) < 32 for letter in extension)

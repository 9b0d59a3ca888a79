"""Conventions in file and folder names of images, shared by training and the page."""


def numbered(name: str) -> tuple[int, str] | None:
    """Parse "10_cat" into (10, "cat"), repeats and class tokens. None for a name of another form."""
    number, _, concept = name.partition("_")
    return (int(number), concept) if number.isdecimal() else None


def dotted(extension: str) -> str:
    """Return ".txt" for "txt" and for ".txt"."""
    return extension if extension.startswith(".") else f".{extension}"


def is_ending(extension: str) -> bool:
    """Whether a file name can have this extension."""
    return bool(extension.strip()) and not any(letter in '/\\:*?"<>|' or ord(letter) < 32 for letter in extension)

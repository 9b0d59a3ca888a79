"""A text that holds several words, quoted as in a shell."""

import shlex


def shell_words(text: str) -> list[str]:
    """`a "b c"` -> ["a", "b c"]. A backslash is a letter, as in Windows' paths. Raises ValueError at an open quote."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    return list(lexer)

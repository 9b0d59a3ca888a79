"""Checks of this machine, each of which says in a sentence what it found and what to do. `__main__.py` runs them."""

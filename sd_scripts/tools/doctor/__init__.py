"""Checks of this machine, each of which reports its finding and the remedy in a sentence. `__main__.py` runs them."""

"""Model families, one folder each. `registry` finds them."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)

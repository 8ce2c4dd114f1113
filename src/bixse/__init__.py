"""Train dense retrievers from graded relevance. Public names are listed in `__init__.pyi`."""

import lazy_loader

__version__ = "1.0.0rc1"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

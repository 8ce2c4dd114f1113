"""Losses on graded (query, document) pairs; usable alone with sentence-transformers' own trainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

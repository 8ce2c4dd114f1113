"""The modules that make up a sentence-transformers model, those behind a router included."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentence_transformers import SentenceTransformer
    from torch import nn


def parts_of(model: SentenceTransformer) -> Iterator[nn.Module]:
    """Each module of the model in order; after a router follow the modules of its routes."""
    for module in model.children():
        yield module
        for route in _routes(module):
            yield from route.children()


def input_parts(model: SentenceTransformer) -> list[nn.Module]:
    """The modules that read the texts: the first one, or behind a router the first one of each route."""
    first = next(iter(model.children()))
    return [next(iter(route.children())) for route in _routes(first)] or [first]


def _routes(module: nn.Module) -> list[nn.Module]:
    """The routes of a router, none for any other module."""
    from sentence_transformers.base.modules import Router

    return list(module.sub_modules.children()) if isinstance(module, Router) else []

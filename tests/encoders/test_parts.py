from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.encoders.loading.parts import input_parts, parts_of

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel


def test_the_parts_of_a_plain_model_are_its_modules(tiny_model: RelevanceModel) -> None:
    assert [type(part).__name__ for part in parts_of(tiny_model)] == ["Transformer", "Pooling"]
    assert input_parts(tiny_model) == [tiny_model[0]]


def test_what_lies_behind_a_router_is_a_part(router_model: RelevanceModel) -> None:
    names = [type(part).__name__ for part in parts_of(router_model)]
    assert names == ["Router", "Transformer", "Pooling", "Transformer", "Pooling"]
    routes = router_model[0].sub_modules
    assert input_parts(router_model) == [routes["query"][0], routes["document"][0]]

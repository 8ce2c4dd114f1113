from __future__ import annotations

from bixse.encoders.loading.parts import input_parts, parts_of


def test_the_parts_of_a_plain_model_are_its_modules(tiny_model):
    assert [type(part).__name__ for part in parts_of(tiny_model)] == ["Transformer", "Pooling"]
    assert input_parts(tiny_model) == [tiny_model[0]]


def test_what_lies_behind_a_router_is_a_part(router_model):
    names = [type(part).__name__ for part in parts_of(router_model)]
    assert names == ["Router", "Transformer", "Pooling", "Transformer", "Pooling"]
    routes = router_model[0].sub_modules
    assert input_parts(router_model) == [routes["query"][0], routes["document"][0]]

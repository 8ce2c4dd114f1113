"""Addresses of servers, and the models that they list."""

import pytest

from bixse.errors import InputError
from bixse.judging.judges.endpoints import choose_model, models_in, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "api", "root"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://h/v1/chat/completions", "http://h/v1", "http://h"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1", "https://api.groq.com/openai"),
        ("https://g.com/v1beta/openai/", "https://g.com/v1beta/openai", "https://g.com"),
        ("http://[::1]:8080", "http://[::1]:8080/v1", "http://[::1]:8080"),
        ("http://h/proxy", "http://h/proxy/v1", "http://h/proxy"),
    ],
)
def test_addresses_with_and_without_v1(text, api, root):
    assert parse_address(text) == (api, root)


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999999", "http://h:x"])
def test_what_is_no_address(text):
    with pytest.raises(InputError, match="endpoint: got"):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@h", "http://hunter2@h/v1", "http://h/v1?key=hunter2", "me:hunter2@h"]
)
def test_addresses_that_hold_secrets_are_refused_without_repeating_them(text):
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("addresses", [[], ["http://a", "http://a/v1"]])
def test_no_endpoint_or_one_twice(addresses):
    with pytest.raises(InputError):
        parse_addresses(addresses)


def test_models():
    listed = models_in({"data": [{"id": "/m/a.gguf", "owned_by": "llamacpp", "aliases": ["a"]}]})
    assert choose_model(listed, None, "x").name == "a.gguf"
    assert choose_model(listed, "a", "x").id == "/m/a.gguf"
    assert choose_model(listed, "a.gguf", "x").kind == "llama.cpp"
    with pytest.raises(InputError, match=r"did you mean 'a\.gguf'"):
        choose_model(listed, "b.gguf", "x")
    two = models_in({"data": [{"id": "a"}, {"id": "b"}]})
    with pytest.raises(InputError, match=r"2 models \(a, b\).*--model"):
        choose_model(two, None, "x")
    assert choose_model(two, "hidden", "x").id == "hidden"
    with pytest.raises(InputError, match="no list of models"):
        choose_model(None, None, "x")
    assert choose_model(None, "m", "x").id == "m"
    for content in ({}, {"data": None}, 3, "x"):
        with pytest.raises(ValueError):
            models_in(content)

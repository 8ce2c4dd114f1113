"""Which names are those of one model."""

import pytest

from bixse.judging.judge import same_model


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", ""),
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4", "gpt-4-0613"),
        ("openai/gpt-4o", "gpt-4o-2024-08-06"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("gemini-1.5-pro", "models/gemini-1.5-pro-002"),
        ("mistral-large-latest", "mistral-large-2411"),
        ("gemini-2.0-flash-05-06", "gemini-2.0-flash"),
        ("llama3.1", "llama3.1:latest"),
        ("deepseek/deepseek-r1", "deepseek/deepseek-r1:free"),
        ("Qwen/Qwen2.5-7B-Instruct", "/models/Qwen2.5-7B-Instruct/"),
        ("qwen2.5-7b-instruct", r"C:\\models\\Qwen2.5-7B-Instruct.gguf"),
    ],
)
def test_the_same(asked, answered):
    assert same_model(asked, answered)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o", "gpt-4o-mini-2024-07-18"),
        ("gpt-4", "gpt-4o"),
        ("gpt-4-0613", "gpt-4-0314"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"),
        ("llama3:8b", "llama3:70b"),
        ("llama-3", "llama-3-70b"),
        ("judge-model", "cheap-model"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ],
)
def test_others(asked, answered):
    assert not same_model(asked, answered)

"""Chat messages as the tokens that a local judge reads, ready for its answer."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from bixse.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Messages = Sequence[Mapping[str, str]]

_PROBE = "bixse-probe"
"""Does a template show the system message?"""
_REASONING = "<think>"


class PromptRenderer:
    """Renders messages by the chat template of a tokenizer of transformers, up to where the answer begins.

    Reasoning is switched off (`enable_thinking=False`); where a template begins it all the same, it is closed at once.
    A template that refuses or drops the system message gets its text at the head of the user message. A tokenizer
    without template gets plain text. Control tokens inside a text, with which it could end its message and answer for
    the judge, are broken by a space. Raises ModelError for a template that does not render a user message.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.template = getattr(tokenizer, "chat_template", None)
        self.notes: list[str] = []
        """What the user should know."""
        self._merges_system = False
        self._control_tokens = self._find_control_tokens()
        if self.template is None:
            self.notes.append("the judge has no chat template: it is asked in plain text (an instruct model has one)")
        else:
            self._try_template()

    @property
    def template_hash(self) -> str:
        """SHA-256; "plain" without a template."""
        if self.template is None:
            return "plain"
        return hashlib.sha256(json.dumps(self.template, sort_keys=True).encode("utf-8")).hexdigest()

    def texts(self, conversations: Sequence[Messages]) -> list[str]:
        prepared = [self._prepared(messages) for messages in conversations]
        if self.template is None:
            return ["\n\n".join(message["content"] for message in messages) + "\n" for messages in prepared]
        return [_closed(text) for text in self._render(prepared)]

    def encode(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """The prompts as token ids, whole: nothing is cut."""
        if not conversations:
            return []
        plain = self.template is None  # a template writes the special tokens itself
        encoded = self.tokenizer(self.texts(conversations), add_special_tokens=plain, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def _prepared(self, messages: Messages) -> list[dict[str, str]]:
        safe = [{"role": message["role"], "content": self._broken(message["content"])} for message in messages]
        if self._merges_system and len(safe) > 1 and safe[0]["role"] == "system":
            system, user, *rest = safe
            return [{"role": user["role"], "content": f"{system['content']}\n\n{user['content']}"}, *rest]
        return safe

    def _broken(self, text: str) -> str:
        for token in self._control_tokens:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _find_control_tokens(self) -> list[str]:
        """Special tokens, and tokens that the template writes itself, such as those around reasoning."""
        template = json.dumps(self.template, ensure_ascii=False)
        added = self.tokenizer.added_tokens_decoder.values()
        found = {
            token.content
            for token in added
            if token.special or (self.template is not None and token.content in template)
        }
        return sorted((token for token in found if len(token) > 1 and not token.isspace()), key=len, reverse=True)

    def _render(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        rendered: list[str] = self.tokenizer.apply_chat_template(
            [list(messages) for messages in conversations],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        return rendered

    def _try_template(self) -> None:
        """Find out whether the template takes a system message and whether it begins reasoning."""
        import jinja2

        user = {"role": "user", "content": "question"}
        try:
            shown = self._render([[{"role": "system", "content": _PROBE}, user]])[0]
        except (jinja2.TemplateError, TypeError, ValueError):
            shown = ""
        self._merges_system = _PROBE not in shown
        try:
            text = self._render([[user]])[0]
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ModelError(
                f"chat template: got {type(error).__name__}: {error}; expected one that renders a user message; "
                "fix: choose another model, or correct its chat_template"
            ) from error
        if "question" not in text:
            raise ModelError(
                "chat template: got a prompt without the user message; expected its text; "
                "fix: choose another model, or correct its chat_template"
            )
        if self._merges_system:
            self.notes.append("the chat template takes no system message: its text leads the user message")
        if _closed(text) != text:
            self.notes.append("the chat template begins reasoning that cannot be switched off: it is closed at once")


def _closed(text: str) -> str:
    return f"{text.rstrip()}\n\n</think>\n\n" if text.rstrip().endswith(_REASONING) else text

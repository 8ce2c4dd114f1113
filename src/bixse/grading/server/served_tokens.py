"""A server's own tokenizer, where it offers one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bixse.grading.reading.expected_grade import spellings
from bixse.grading.server.request import chat_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.grading.server.client import ServerClient
    from bixse.grading.server.request import RequestForm
    from bixse.grading.server.served_models import ServedModel


class ServerTokenizer:
    """Asks vLLM, SGLang and llama.cpp how they cut texts into tokens; other servers have nothing to ask."""

    def __init__(self, client: ServerClient, model: ServedModel) -> None:
        self._client, self._model = client, model

    async def ids(self, text: str) -> list[int] | None:
        """Token ids of a text without special tokens, or None where the server does not say."""
        return await self._ids({self._text_key: text, "add_special_tokens": False})

    async def option_ids(self, labels: Sequence[str]) -> tuple[int, ...] | None:
        """Ids of all spellings of the options that are one token; None where an option without a space is several."""
        found = []
        for label in labels:
            cut = [await self.ids(spelling) for spelling in spellings(label)]
            if cut[0] is None or len(cut[0]) != 1:
                return None
            found += [ids[0] for ids in cut if ids is not None and len(ids) == 1]
        return tuple(dict.fromkeys(found))

    async def count(self, messages: Sequence[Mapping[str, str]], form: RequestForm) -> int | None:
        """Tokens of a chat prompt as the server renders it; of the texts alone where it does not tell its template."""
        chat = chat_messages(form, messages)
        if self._model.kind == "vllm":
            asked: dict[str, Any] = {"messages": chat, "add_generation_prompt": True}
            if form.thinking_off:
                asked["chat_template_kwargs"] = {"enable_thinking": False}
            found = await self._ids(asked)
        else:
            rendered = await self._post("root:/apply-template", {"messages": chat}, "prompt", str)
            text = rendered or "\n".join(message["content"] for message in chat)
            special = {"add_special": True, "parse_special": True} if rendered else {}
            found = await self._ids({self._text_key: text, **special})
        return None if found is None else len(found)

    @property
    def _text_key(self) -> str:
        return "content" if self._model.kind == "llama.cpp" else "prompt"

    async def _ids(self, asked: Mapping[str, Any]) -> list[int] | None:
        ids: list[int] | None = await self._post("root:/tokenize", {"model": self._model.id, **asked}, "tokens", list)
        return ids

    async def _post(self, path: str, body: Mapping[str, Any], key: str, kind: type) -> Any:
        """One value of a JSON reply, None where the server does not have this path or says something else."""

        def parse(content: Any) -> Any:
            return content.get(key) if isinstance(content, dict) and isinstance(content.get(key), kind) else None

        outcome = await self._client.ask(path, json.dumps(body).encode("utf-8"), parse, tries=3)
        return outcome.value

"""A server's own tokenizer, where it offers one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.grading.reading.expected_grade import spellings
from bixse.grading.server.request import chat_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.grading.server.client import ChatClient
    from bixse.grading.server.request import RequestForm
    from bixse.grading.server.served_models import ServedModel


class ServerTokenizer:
    """Asks vLLM, SGLang and llama.cpp how they cut texts into tokens; other servers have nothing to ask."""

    def __init__(self, client: ChatClient, model: ServedModel) -> None:
        self._client, self._model = client, model
        self._text_key = "content" if model.kind == "llama.cpp" else "prompt"

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
            body: dict[str, Any] = {"messages": chat, "add_generation_prompt": True}
            if form.thinking_off:
                body["chat_template_kwargs"] = {"enable_thinking": False}
            found = await self._ids(body)
        else:
            reply = await self._client.post("/apply-template", {"messages": chat})
            rendered = reply.get("prompt") if isinstance(reply, dict) else None
            text = rendered or "\n".join(message["content"] for message in chat)
            special = {"add_special": True, "parse_special": True} if rendered else {}
            found = await self._ids({self._text_key: text, **special})
        return None if found is None else len(found)

    async def _ids(self, body: Mapping[str, Any]) -> list[int] | None:
        reply = await self._client.post("/tokenize", {"model": self._model.id, **body})
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        return tokens if isinstance(tokens, list) else None

"""A real HTTP server in a process of its own that speaks every dialect of chat servers, and breaks as they do.

Tests describe a scenario and get its address. The answer to a question, and the errors before it, are planted in its
document as `plan={...}`.
"""

import asyncio
import base64
import gzip
import json
import math
import random
import re
import subprocess
import sys
import urllib.request
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote

LABELS = ["0", "1", "2", "3"]
FILLERS = ["The", "A", "I", "This", "It", "Based", "Score", "**", "\n", "To", "We", "Here", "Sure", "You", "In", "As"]
BARE_SHARE = 0.9
"""Share of an option's probability that goes to the token without a space."""
WRITTEN = {
    "none": "I have read the passage with care.",
    "refuse": "I'm sorry, I can't help with that.",
    "ambiguous": "On a scale of 0 to 3, I would rate this passage a 1.",
    "negated": "I would not give it a 3.",
    "compared": "It deserves less than a score of 2.",
    "counted": "2. The passage is about another city.",
    "cut": "2. The passage is about another city of the same name, which lies in the north of the state of Texas.",
}
"""End -> text that is written in the place of a rating."""
UNUSABLE = {"written-nan": math.nan, "written-null": None, "written-9999": -9999.0}
"""Log-probability of the token that was written."""
PLAN = re.compile(r"plan=(\{.*\})", re.DOTALL)


def planted(identifier, probabilities, errors=None, end=""):
    """A document that tells the server how to answer."""
    plan = {"id": identifier, "p": probabilities, "errors": errors or [], "end": end}
    return f"a document. plan={json.dumps(plan)}"


def spellings_of(key):
    """A key as servers repeat it: plain, escaped for JSON and addresses, in hex and base64 at every alignment."""
    code = "".join(f"%{ord(c):02x}" for c in key)
    basic = [base64.b64encode(f"{user}:{key}".encode()).decode() for user in ("", "u", "us", "use")]
    return [
        key,
        json.dumps(key)[1:-1],
        "".join(f"\\u{ord(c):04X}" for c in key),  # escaped twice: the text itself holds the escapes
        code,
        code.upper(),
        quote(key, safe=""),
        quote(key, safe="").lower(),
        key.encode().hex(),
        *basic,
        *(urlsafe_b64(f"{text}?>~{key}??>") for text in ("", "a", "ab")),
    ]


def urlsafe_b64(text):
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def plain(text):
    """Tokens of a text, each near certain."""
    return [(token, {token: 0.9, "x": 0.05}) for token in re.findall(r"\s?[^\s]+|\s+$", text)]


def alternatives(plan):
    """Token -> probability at the answer position."""
    found = {}
    for label, share in zip(plan.get("labels", LABELS), plan["p"], strict=True):
        if share > 0:
            found[label], found[f" {label}"] = share * BARE_SHARE, share * (1 - BARE_SHARE)
    rest = max(0.0, 1.0 - sum(found.values()))
    weights = [2.0**-position for position in range(1, len(FILLERS) + 1)]
    for token, weight in zip(FILLERS, weights, strict=True):
        if rest > 0:
            found[token] = rest * weight
    return found


REFUSED = {
    "403": (403, "Access denied: the request was blocked by the web application firewall"),
    "django": (400, "cannot read: 'the Django model was not found, so I wrote this passage'"),
    "no-such": (404, "Not Found"),
    "402": (402, "this text costs more than you have"),
    "no-logprobs": (400, "logprobs is not supported with this model"),
    "too-long": (400, "request exceeds the available context size"),
    "odd-400": (400, "I do not like this one"),
}
"""End -> status and message of a refusal that is about this one text."""
SLOW_DOWN = {"error": "slow down"}
ERRORS = {
    "429": (429, SLOW_DOWN, "0.05"),
    "429-bare": (429, SLOW_DOWN, None),
    "429-quota": (
        429,
        {"error": {"message": "You exceeded your current quota (insufficient_quota): 3 requests per minute"}},
        "0.05",
    ),
    **{status: (int(status), "<html>broken</html>", None) for status in ("500", "502", "503", "529")},
    "garbage": (200, "{not json", None),
    "empty": (200, {"id": "x", "choices": []}, None),
    "null-choices": (200, {"id": "x", "choices": None}, None),
    "error-200": (200, {"error": {"message": "provider is overloaded", "code": 429}}, None),
}
"""Error -> status, content and Retry-After."""
TRIES = defaultdict(Counter)
"""Tries of each planted document; endpoints of one group count together."""


class Scenario:
    """One pretended server."""

    def __init__(self, settings):
        self.settings = settings
        self.tries = TRIES[self.get("group") or str(id(self))]
        self.counts: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self.recent: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.admitted = self.second = 0

    def get(self, name, default=None):
        return self.settings.get(name, default)

    def admit(self, now):
        """Whether there is a request left in this second."""
        if int(now) != self.second:
            self.second, self.admitted = int(now), 0
        self.admitted += 1
        return self.admitted <= int(self.settings["each_second"])

    # --- what is answered -------------------------------------------------------------------------------------------

    def plan(self, body):
        text = body["messages"][-1]["content"]
        labels = self.get("labels", LABELS)
        match = PLAN.search(text)
        if match:
            return {"labels": labels, **json.loads(match[1])}
        right = "Paris is the capital" in text
        shares = [0.02] * (len(labels) - 1)
        shares = [*shares, self.get("known", 0.9)] if right else [self.get("known", 0.9), *shares]
        return {"id": "known", "p": shares, "errors": [], "end": self.get("known_end", ""), "labels": labels}

    def tokens(self, plan, body, index=0):
        """Tokens to write, each with the alternatives of its place."""
        labels = plan["labels"]
        options = alternatives(plan)
        allowed = self.allowed(body)
        if allowed is not None:
            best = max(allowed, key=lambda label: options.get(label, 0.0))
            if best in labels:
                return [(best, options)]
            return [(best[:3], {best[:3]: 1e-6, **options}), (best[3:], {best[3:]: 0.9, "x": 0.1})]
        best = max(labels, key=lambda label: options.get(label, 0.0))
        if body.get("temperature"):
            draw = random.Random(f"{plan['id']} {body.get('seed')} {index}")
            best = draw.choices([*labels, "hmm"], [*plan["p"], max(0.0, 1 - sum(plan["p"]))])[0]
        end = plan["end"]
        if end == "off":
            return [("7", {"7": 0.8, "3": 0.1})]
        if end in WRITTEN:
            return plain(WRITTEN[end])
        prefix = self.get("prefix", "")
        before = plain(prefix)
        if end == "think" or (self.get("thinking") == "tags" and not self.thinking_off(body)):
            begin, close = ("<think>", {"<think>": 0.99, "3": 0.001}), ("</think>", {"</think>": 0.9, "x": 0.1})
            return [
                begin,
                *plain("0 or 1 or 2?"),
                close,
                ("\n\n", {"\n\n": 0.99, "\n": 0.01}),
                *before,
                (best, options),
            ]
        if self.get("thinking") == "separate" and not self.thinking_off(body):
            return [*plain("Let me think about 3 things."), (best, options)]
        written = [(best, options)]
        if best in self.get("split_labels", []):
            seen = {token: share for token, share in options.items() if token.strip() != best}
            written = [(best[0], {**seen, best[0]: 0.5}), (best[1:], {best[1:]: 0.9, "x": 0.1})]
        return [*before, *written, *plain(self.get("suffix", ""))]

    def thinking_off(self, body):
        off = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False
        return off and self.get("thinking_switch", True)

    def allowed(self, body):
        kind = self.get("constraint")
        given = body.get(kind) if kind else None
        if given is None:
            return None
        if kind == "structured_outputs":
            return list(given["choice"])
        return re.findall(r'"([^"]+)"', given) if kind == "grammar" else given.strip("()").split("|")

    # --- how it is written ------------------------------------------------------------------------------------------

    def reply(self, body, plan):
        count = 1 if self.get("ignores_n") else min(body.get("n", 1), self.get("most_n", 100))
        choices, written_total = [], 0
        limit = body.get("max_completion_tokens", body.get("max_tokens", 1000))
        for index in range(count):
            tokens = self.tokens(plan, body, index)
            finish = "length" if len(tokens) > limit else "stop"
            tokens = tokens[:limit]
            written_total += len(tokens)
            message = {"role": "assistant", "content": "".join(token for token, _ in tokens)}
            if self.get("thinking") == "separate" and not self.thinking_off(body) and plan["end"] == "":
                split = len(tokens) - (finish == "stop")
                parts = ("".join(token for token, _ in part) for part in (tokens[:split], tokens[split:]))
                message["reasoning_content"], message["content"] = parts
            if plan["end"] == "filter":
                finish = "content_filter"
            if plan["end"] == "message-refusal":
                message |= {"content": None, "refusal": "I will not judge this."}
            logprobs = self.logprobs(body, plan, tokens)
            choice = {"index": index, "message": message, "finish_reason": finish}
            if logprobs is not None or self.get("dialect") == "null":
                choice["logprobs"] = logprobs
            choices.append(choice)
        usage = {
            "prompt_tokens": 50,
            "completion_tokens": written_total,
            "prompt_tokens_details": {"cached_tokens": 40},
        }
        return {"id": "x", "model": body.get("model"), "choices": choices, "usage": usage}

    def logprobs(self, body, plan, tokens):
        dialect, end = self.get("dialect", "openai"), plan["end"]
        if body.get("logprobs") is not True or dialect in ("ignore", "null") or end == "null":
            return None
        top = min(int(body.get("top_logprobs", 0)), self.get("gives_top", 10**6))

        def entry(word, value):
            return {"token": word.replace(" ", "Ġ") if dialect == "marks" else word, "logprob": value,
                    "bytes": list(word.encode())}  # fmt: skip

        content = []
        for token, options in tokens:
            ranked = sorted(options.items(), key=lambda option: -option[1])[:top]
            if dialect == "zeros":
                listed = [(word, 0.0) for word, _ in ranked]
            elif dialect == "minus" or end == "9999":
                listed = [(word, 0.0 if word == token else -9999.0) for word, _ in ranked]
            else:
                listed = [(word, math.log(share)) for word, share in ranked]
            written = dict(listed).get(token, math.log(options.get(token, 1e-9)))
            top_logprobs = [entry(word, value) for word, value in self.damaged(end, token, listed)]
            content.append({**entry(token, UNUSABLE.get(end, written)), "top_logprobs": top_logprobs})
        return {"content": content}

    def damaged(self, end, written, listed):
        """The alternatives, with one value that cannot be used, without the written token, or named twice."""
        if end in UNUSABLE:
            return [(word, UNUSABLE[end] if word == written else value) for word, value in listed]
        if end in ("left-out", "left-out-of-few"):
            others = [(word, value) for word, value in listed if word != written]
            return others[:4] if end == "left-out-of-few" else others
        if end == "twice":
            return [*listed, *((word.replace(" ", "▁"), value - 0.01) for word, value in listed)]
        return listed

    # --- what is refused --------------------------------------------------------------------------------------------

    def refusal(self, body, headers):
        """Status and error of the first rule that a request breaks, or None."""
        key, model, sent = self.get("key"), body.get("model"), headers.get("Authorization", "nothing")
        if key and (self.counts["chat"] > self.get("key_until", 10**9) or sent != f"Bearer {key}"):
            echo = sent if self.get("echo_key") else "a wrong key"
            return self.get("key_status", 401), {"error": {"message": f"Incorrect API key provided: {echo}"}}
        if model not in self.get("models", ["judge-model"]) and not self.get("any_model"):
            return 404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}}
        if not self.get("system", True) and body["messages"][0]["role"] == "system":
            message = self.get("system_says", "System role not supported")
            return self.get("system_status", 400), {"error": {"message": message}}
        most_top, number = self.get("most_top", 10**6), body.get("n", 1)
        rules = {
            "Logprobs is not supported for this model.": self.get("no_logprobs") and "logprobs" in body,
            f"top_logprobs must be at most {most_top}": (body.get("top_logprobs") or 0) > most_top,
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.":
                self.get("limit_name") and "max_tokens" in body,
            "Unsupported value: 'temperature' does not support 0 with this model.":
                self.get("no_temperature") and "temperature" in body,
            "Extra inputs are not permitted: seed": self.get("no_seed") and "seed" in body,
            f"Field 'n': Value must be between 1 <= value <= 2, but got {number}": number > self.get("most_n", 100),
            "chat_template_kwargs is not supported by this tokenizer":
                self.get("no_template_kwargs") and "chat_template_kwargs" in body,
            "This model's maximum context length is 2048 tokens. However, you requested 9000 tokens.":
                len(body["messages"][-1]["content"]) > self.get("context", 10**9),
        }  # fmt: skip
        message = next((message for message, is_broken in rules.items() if is_broken), None)
        if message is None:
            return None
        if "seed" in message or "context" in message:
            return (422 if "seed" in message else 400), {"object": "error", "message": message}
        return 400, {"error": message if "tokenizer" in message else {"message": message}}

    def stats(self):
        return {"counts": dict(self.counts), "most_in_flight": self.most_in_flight, "in_flight": self.in_flight,
                "recent": self.recent, "bodies": self.bodies, "tries": dict(self.tries)}  # fmt: skip


def application():
    from aiohttp import web

    scenarios = {}

    async def make(request):
        name = f"s{len(scenarios)}"
        scenarios[name] = Scenario(await request.json())
        return web.json_response({"name": name})

    async def change(request):
        scenarios[request.match_info["name"]].settings |= await request.json()
        return web.json_response({})

    async def stats(request):
        return web.json_response(scenarios[request.match_info["name"]].stats())

    def drop(request):
        request.transport.abort()
        return web.Response()

    def say(status, content, wait=None):
        headers = {} if wait is None else {"Retry-After": str(wait)}
        if isinstance(content, str):
            return web.Response(status=status, text=content, headers=headers, content_type="application/json")
        return web.json_response(content, status=status, headers=headers)

    def refuse(status, message):
        return say(status, {"error": {"message": message}})

    async def models(request):
        scenario = scenarios[request.match_info["name"]]
        scenario.counts["models"] += 1
        if scenario.get("down"):
            return drop(request) if scenario.get("down") == "dead" else say(503, {"error": "down"})
        if scenario.get("no_list"):
            return say(404, {"detail": "Not Found"})
        owner = scenario.get("owned_by", "someone")
        data = [{"id": name, "object": "model", "owned_by": owner} for name in scenario.get("models", ["judge-model"])]
        return web.json_response({"object": "list", "data": data})

    async def chat(request):
        scenario = scenarios[request.match_info["name"]]
        body = json.loads(await request.read())
        scenario.counts["chat"] += 1
        if len(scenario.bodies) < 40:
            scenario.bodies.append(body)
        if scenario.get("down"):
            return drop(request) if scenario.get("down") == "dead" else say(503, {"error": "down"})
        if scenario.in_flight >= scenario.get("capacity", 10**6):
            scenario.counts["over capacity"] += 1
            return say(429, {"error": {"message": "too many requests"}}, scenario.get("retry_after"))
        if scenario.get("each_second") and not scenario.admit(time()):
            scenario.counts["too often"] += 1
            return refuse(429, "rate limit")
        refusal = scenario.refusal(body, request.headers)
        if refusal is not None:
            scenario.counts[f"refused {refusal[0]}"] += 1
            return say(*refusal)
        scenario.in_flight += 1
        scenario.most_in_flight = max(scenario.most_in_flight, scenario.in_flight)
        scenario.recent.append(scenario.in_flight)
        del scenario.recent[:-1000]
        try:
            plan = scenario.plan(body)
            number = scenario.tries[plan["id"]]
            scenario.tries[plan["id"]] += 1
            error = plan["errors"][number] if number < len(plan["errors"]) else ""
            return await answer(request, scenario, body, plan, error)
        finally:
            scenario.in_flight -= 1

    async def answer(request, scenario, body, plan, error):
        if scenario.get("delay"):
            await asyncio.sleep(scenario.get("delay"))
        if error:
            scenario.counts[error] += 1
        if error == "429-date":
            return say(429, SLOW_DOWN, formatdate(time(), usegmt=True))
        if error.startswith("429-after-"):
            return say(429, SLOW_DOWN, error.removeprefix("429-after-"))
        if error in ERRORS:
            return say(*ERRORS[error])
        if error == "reset":
            return drop(request)
        if error == "stall":
            await asyncio.sleep(60)
        if plan["end"] in REFUSED:
            return refuse(*REFUSED[plan["end"]])
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        spelled = spellings_of(key)[sum(map(ord, plan["id"])) % len(spellings_of(key))]
        if plan["end"] == "echo-error":
            return refuse(400, f"I do not like {spelled} at all")
        reply = scenario.reply(body, plan)
        if plan["end"] == "huge":  # a small body of gzip: what it holds is sent as it is made
            body = gzip.compress(json.dumps(reply).encode() + b" " * scenario.get("huge"))
            return web.Response(body=body, headers={"Content-Encoding": "gzip"}, content_type="application/json")
        if plan["end"] == "huge-error":
            return web.Response(status=400, text="no " * scenario.get("huge"))
        if plan["end"] == "other-model" or scenario.get("answers_as") is not None:
            reply["model"] = scenario.get("answers_as", "cheap-model")
        if plan["end"].startswith("usage "):
            reply["usage"]["prompt_tokens"] = json.loads(plan["end"].removeprefix("usage "))
        if plan["end"] == "echo-text":
            message = reply["choices"][0]["message"]
            message |= {"content": None, "refusal": f"I will not judge for {spelled}"}
        escaped = "".join(f"\\u{ord(c):04x}" for c in key)  # what JSON makes of it is the plain key
        data = json.dumps(reply).replace(key or "\0", escaped).encode()
        if error == "half":
            headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await response.write(data[: len(data) // 2])
            request.transport.close()
            return response
        return web.Response(body=data, content_type="application/json")

    app = web.Application(client_max_size=10**8)
    app.add_routes(
        [
            web.post("/_scenario", make),
            web.post("/_scenario/{name}", change),
            web.get("/_stats/{name}", stats),
            web.get("/{name}/v1/models", models),
            web.post("/{name}/v1/chat/completions", chat),
        ]
    )
    return app


@dataclass
class ChatServer:
    """The running process, as tests see it."""

    base: str

    def scenario(self, **settings):
        """Start a pretended server; returns its address."""
        return f"{self.base}/{self._post('/_scenario', settings)['name']}"

    def change(self, address, **settings):
        self._post(f"/_scenario/{address.rsplit('/', 1)[1]}", settings)

    def stats(self, address):
        with urllib.request.urlopen(f"{self.base}/_stats/{address.rsplit('/', 1)[1]}", timeout=10) as response:
            return json.load(response)

    def _post(self, path, content):
        request = urllib.request.Request(self.base + path, json.dumps(content).encode())
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


@contextmanager
def chat_server():
    """Start the process and stop it at the end."""
    process = subprocess.Popen([sys.executable, str(Path(__file__).resolve())], stdout=subprocess.PIPE, text=True)
    try:
        yield ChatServer(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(10)


async def main():
    from aiohttp import web

    runner = web.AppRunner(application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

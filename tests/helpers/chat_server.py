"""A real HTTP server in a process of its own that speaks every dialect of chat servers, and breaks as they do.

Tests describe a scenario and get its address. The answer to a question, and the errors before it, are planted in its
document as `plan={...}`.
"""

import asyncio
import gzip
import json
import math
import random
import re
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LABELS = ["0", "1", "2", "3"]
BARE_SHARE = 0.9
"""Share of an option's probability that goes to the token without a space."""
WRITTEN = {
    "none": "I have read the passage with care.",
    "refuse": "I'm sorry, I can't help with that.",
    "cut": "The passage is about another city of the same name. " * 4,
}
"""End -> text that is written in the place of a rating."""
PLAN = re.compile(r"plan=(\{.*\})", re.DOTALL)


def planted(identifier, probabilities, errors=None, end=""):
    """A document that tells the server how to answer."""
    plan = {"id": identifier, "p": probabilities, "errors": errors or [], "end": end}
    return f"a document. plan={json.dumps(plan)}"


def plain(text):
    """Tokens of a text, each near certain."""
    return [(token, {token: 0.9, "x": 0.05}) for token in re.findall(r"\s?[^\s]+|\s+$", text)]


def alternatives(plan):
    """Token -> probability at the answer position."""
    found = {}
    for label, share in zip(plan.get("labels", LABELS), plan["p"], strict=True):
        if share > 0:
            found[label], found[f" {label}"] = share * BARE_SHARE, share * (1 - BARE_SHARE)
    return {**found, "The": 1.0 - sum(found.values())} if sum(found.values()) < 1 else found


REFUSED = {
    "403": (403, "Access denied: the request was blocked by the web application firewall"),
    "no-logprobs": (400, "logprobs is not supported with this model"),
    "too-long": (400, "request exceeds the available context size"),
}
"""End -> status and message of a refusal that is about this one text."""
ERRORS = {
    "400": (400, {"error": {"message": "I do not like it"}}),
    "429": (429, {"error": "slow down"}),
    "500": (500, "<html>broken</html>"),
    "503": (503, "<html>broken</html>"),
    "garbage": (200, "{not json"),
    "empty": (200, {"id": "x", "choices": []}),
    "paid": (200, {"id": "x", "choices": None, "usage": {"prompt_tokens": 50, "completion_tokens": 0}}),
}
"""Error -> status and content; "429-after-2" is busy for 2 seconds."""


class Scenario:
    def __init__(self, settings):
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()  # of each planted document
        self.in_flight = self.most_in_flight = 0
        self.billed = 0  # prompt tokens of all replies, whatever they hold
        self.body: dict[str, object] = {}  # of the last request

    def get(self, name, default=None):
        return self.settings.get(name, default)

    def plan(self, body):
        text = body["messages"][-1]["content"]
        labels = self.get("labels", LABELS)
        if match := PLAN.search(text):
            return {"labels": labels, **json.loads(match[1])}
        right = "Paris is the capital" in text
        shares = [0.02] * (len(labels) - 1)
        shares = [*shares, self.get("known", 0.9)] if right else [self.get("known", 0.9), *shares]
        return {
            "id": "known",
            "p": shares,
            "errors": self.get("known_errors", []),
            "end": self.get("known_end", ""),
            "labels": labels,
        }

    def tokens(self, plan, body, index=0):
        """Tokens to write, each with the alternatives of its place."""
        labels = plan["labels"]
        options = alternatives(plan)
        best = max(labels, key=lambda label: options.get(label, 0.0))
        if self.get("constraint") in body:
            return [(best, options)]
        if body.get("temperature"):
            draw = random.Random(f"{plan['id']} {body.get('seed')} {index}")
            best = draw.choices([*labels, "hmm"], [*plan["p"], max(0.0, 1 - sum(plan["p"]))])[0]
        end = plan["end"]
        if end == "off":
            return [("7", {"7": 0.8, "3": 0.1})]
        if end in WRITTEN:
            return plain(WRITTEN[end])
        before = plain(self.get("prefix", ""))
        off = body.get("chat_template_kwargs") == {"enable_thinking": False} and self.get("thinking_switch", True)
        if end == "think" or (self.get("thinks") and not off):
            begin, close = ("<think>", {"<think>": 0.99, "3": 0.001}), ("</think>", {"</think>": 0.9, "x": 0.1})
            return [begin, *plain("0 or 1 or 2?"), close, *plain("\n\n"), *before, (best, options)]
        written = [(best, options)]
        if best in self.get("split_labels", []):
            seen = {token: share for token, share in options.items() if token.strip() != best}
            written = [(best[0], {**seen, best[0]: 0.5}), (best[1:], {best[1:]: 0.9, "x": 0.1})]
        return [*before, *written, *plain(self.get("suffix", ""))]

    def reply(self, body, plan):
        count = 1 if self.get("ignores_n") else min(body.get("n", 1), self.get("most_n", 100))
        choices, written = [], 0
        limit = body.get("max_completion_tokens", body.get("max_tokens", 1000))
        for index in range(count):
            tokens = self.tokens(plan, body, index)
            finish = "length" if len(tokens) > limit else "stop"
            tokens = tokens[:limit]
            written += len(tokens)
            message = {"role": "assistant", "content": "".join(token for token, _ in tokens)}
            if plan["end"] == "filter":
                finish = "content_filter"
            logprobs = None if plan["end"] == "null" else self.logprobs(body, tokens)
            choices.append({"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs})
        usage = {"prompt_tokens": 50, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": 40}}
        return {"id": "x", "model": body.get("model"), "choices": choices, "usage": usage}

    def logprobs(self, body, tokens):
        if body.get("logprobs") is not True:
            return None
        top, content = min(body.get("top_logprobs", 0), self.get("gives_top", 10**6)), []
        for token, options in tokens:
            ranked = sorted(options.items(), key=lambda option: -option[1])[:top]
            values = {word: 0.0 if self.get("zeros") else math.log(share) for word, share in ranked}
            written = values.get(token, math.log(options.get(token, 1e-9)))
            top_logprobs = [{"token": word, "logprob": value} for word, value in values.items()]
            content.append({"token": token, "logprob": written, "top_logprobs": top_logprobs})
        return {"content": content}

    def refusal(self, body, headers):
        """Status and error of the first rule that a request breaks, or None."""
        key, model, sent = self.get("key"), body.get("model"), headers.get("Authorization", "nothing")
        name, value = self.get("header", ["", None])
        if value is not None and headers.get(name) != value:
            return 401, {"error": {"message": f"wrong {name}: {headers.get(name)}"}}
        if key and (self.counts["chat"] > self.get("key_until", 10**9) or sent != f"Bearer {key}"):
            return self.get("key_status", 401), {"error": {"message": f"Incorrect API key provided: {sent}"}}
        if model not in self.get("models", ["judge-model"]):
            return 404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}}
        if not self.get("system", True) and body["messages"][0]["role"] == "system":
            message = self.get("system_says", "System role not supported")
            return self.get("system_status", 400), {"error": {"message": message}}
        most_top, number = self.get("most_top", 10**6), body.get("n", 1)
        rules = [
            *((field in body, message) for field, message in self.get("refuses", {}).items()),
            (self.get("no_logprobs") and "logprobs" in body, "Logprobs is not supported for this model."),
            (body.get("top_logprobs", 0) > most_top, f"top_logprobs must be at most {most_top}"),
            (number > self.get("most_n", 100), f"Field 'n': Value must be between 1 <= value <= 2, but got {number}"),
            (len(body["messages"][-1]["content"]) > self.get("context", 10**9), "beyond the maximum context length"),
        ]
        return next(((400, {"error": {"message": message}}) for is_broken, message in rules if is_broken), None)

    def stats(self):
        return {name: value for name, value in vars(self).items() if name != "settings"}


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

    def say(status, content, wait=""):
        text = content if isinstance(content, str) else json.dumps(content)
        headers = {"Retry-After": wait} if wait else {}
        return web.Response(status=status, text=text, headers=headers, content_type="application/json")

    def refuse(status, message):
        return say(status, {"error": {"message": message}})

    async def models(request):
        scenario = scenarios[request.match_info["name"]]
        if scenario.get("down"):
            return say(503, {"error": "down"})
        if scenario.get("no_list"):
            return say(404, {"detail": "Not Found"})
        return web.json_response({"data": [{"id": name} for name in scenario.get("models", ["judge-model"])]})

    async def chat(request):
        scenario = scenarios[request.match_info["name"]]
        body = json.loads(await request.read())
        scenario.counts["chat"] += 1
        scenario.body = body
        if scenario.get("redirect"):
            return web.Response(status=307, headers={"Location": scenario.get("redirect")})
        if scenario.get("answers_with"):
            return web.Response(text=scenario.get("answers_with"))
        if scenario.get("streams") and (body.get("stream", True) or scenario.get("streams") == "always"):
            return web.Response(text='data: {"choices": []}\n\ndata: [DONE]\n\n', content_type="text/event-stream")
        if scenario.get("down"):
            return say(503, {"error": "down"})
        refusal = scenario.refusal(body, request.headers)
        if refusal is not None:
            scenario.counts[f"refused {refusal[0]}"] += 1
            return say(*refusal)
        scenario.in_flight += 1
        scenario.most_in_flight = max(scenario.most_in_flight, scenario.in_flight)
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
        scenario.billed += 50 * (error == "paid")
        kind, _, seconds = error.partition("-after-")
        if kind in ERRORS:
            return say(*ERRORS[kind], wait=seconds)
        if error == "reset":
            return drop(request)
        if error == "stall":
            await asyncio.sleep(60)
        if plan["end"] in REFUSED:
            return refuse(*REFUSED[plan["end"]])
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if plan["end"] == "odd-400":
            return refuse(400, f"I do not like {key} at all")
        reply = scenario.reply(body, plan)
        scenario.billed += 50
        if plan["end"] == "huge":  # a small body of gzip: what it holds is sent as it is made
            body = gzip.compress(json.dumps(reply).encode() + b" " * scenario.get("huge"))
            return web.Response(body=body, headers={"Content-Encoding": "gzip"}, content_type="application/json")
        if plan["end"] == "huge-error":
            return web.Response(status=400, text="n" * scenario.get("huge"))
        if plan["end"] == "other-model":
            reply["model"] = "cheap-model"
        if plan["end"].startswith("usage "):
            reply["usage"]["prompt_tokens"] = json.loads(plan["end"].removeprefix("usage "))
        if plan["end"] == "message-refusal":
            reply["choices"][0]["message"] |= {"content": None, "refusal": f"I will not judge for {key}"}
        data = json.dumps(reply).encode()
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
    base: str

    def scenario(self, **settings):
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
    process = subprocess.Popen([sys.executable, str(Path(__file__).resolve())], stdout=subprocess.PIPE, text=True)
    try:
        yield ChatServer(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    from aiohttp import web

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    web.run_app(application(), sock=listener, backlog=1024, print=None, access_log=None, handle_signals=False)

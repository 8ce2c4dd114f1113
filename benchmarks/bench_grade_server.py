"""How near the HTTP judge comes to what a server can take.

    python benchmarks/bench_grade_server.py [--questions 2000] [--rounds 5] [--out FILE]

A server in a process of its own has a number of places (`slots`) and takes `milliseconds` for an answer, as an
inference server does whose GPU is busy; it answers with real log-probabilities of 20 tokens. Its own limit is
slots / time. `bare` keeps 64 requests in flight with aiohttp and reads the JSON, no more; `bixse` is
`bixse.judging.judges.server_judge.ServerJudge`, from rendered questions to grades. Both ask the same server the same
questions. `ratio` is that of bixse to bare, `bare_cpu_us` and `bixse_cpu_us` are microseconds of the client's processor
per question, `load` is that of the machine before (1 minute).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Question
from bixse.judging.judges.dialects import request_body
from bixse.judging.judges.server_judge import ServerJudge
from bixse.judging.rubrics import load_rubric
from measuring import OUT, Option, in_turn, middle, options, ratios, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

IN_FLIGHT = 64
JUDGE = JudgeOptions(concurrency=IN_FLIGHT)
CASES = ((16, 50.0), (32, 50.0), (64, 100.0))
"""(slots, milliseconds)."""


def serve(slots: int, milliseconds: float, addresses: Connection) -> None:
    """Send the address of a server, and answer until this process is ended."""
    from aiohttp import web

    tokens = [("2", -0.7), ("1", -1.2), ("3", -2.0), ("0", -3.0)]
    tokens += [(f"word{i}", -8.0 - i / 10) for i in range(16)]
    top = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in tokens]
    places = asyncio.Semaphore(slots)
    answer = {
        "id": "x", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "2"},
                     "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201},
    }  # fmt: skip
    body = json.dumps(answer).encode()

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        async with places:
            await asyncio.sleep(milliseconds / 1000)
        return web.Response(body=body, content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})

    async def tell(app: web.Application) -> None:
        addresses.send(f"http://127.0.0.1:{listening.getsockname()[1]}")

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
    app.on_startup.append(tell)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        web.run_app(app, sock=listening, access_log=None, print=None)


@contextmanager
def server(slots: int, milliseconds: float) -> Iterator[str]:
    """Serve in a process of its own within this block, and yield the address."""
    spawn = get_context("spawn")
    receiving, sending = spawn.Pipe(duplex=False)
    process = spawn.Process(target=serve, args=(slots, milliseconds, sending), daemon=True)
    process.start()
    try:
        yield receiving.recv()
    finally:
        process.kill()


async def ask_bare(address: str, bodies: Sequence[dict[str, Any]]) -> None:
    """Ask every body once, as many at once as may be, with nothing around it."""
    import aiohttp

    left = iter(bodies)
    headers = {"Content-Type": "application/json"}

    async def one(session: aiohttp.ClientSession) -> None:
        for body in left:
            data = json.dumps(body).encode()
            async with session.post(f"{address}/v1/chat/completions", data=data, headers=headers) as reply:
                json.loads(await reply.read())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session) for _ in range(IN_FLIGHT)))


def measure(slots: int, milliseconds: float, count: int, rounds: int) -> dict[str, object]:
    """Return one row of the table."""
    load, rubric = os.getloadavg()[0], load_rubric("trec-dl-0-3")
    texts = [("how do I copy a folder", f"page {i}: shutil.copytree copies a tree " * 8) for i in range(count)]
    questions = [
        Question(str(i), str(i), *both, messages=rubric.variants[0].messages(*both)) for i, both in enumerate(texts)
    ]
    with server(slots, milliseconds) as address, ServerJudge(address, rubric, JUDGE) as judge:
        bodies = [request_body(judge.form, question.messages) for question in questions]

        def ours() -> None:
            graded = sum(answer.status == "graded" for _, answer in judge.answers(questions))
            if graded != count:
                raise SystemExit(f"{count - graded} of {count} questions have no grade")

        work = {"bare": lambda: asyncio.run(ask_bare(address, bodies)), "bixse": ours}
        for method in work.values():
            method()  # connections, and how many requests the server copes with
        runs = in_turn(work, rounds)
    row = {"slots": slots, "milliseconds": milliseconds, "limit_per_second": round(slots * 1000 / milliseconds),
           "questions": count, "rounds": rounds}  # fmt: skip
    row |= {f"{name}_per_second": round(count / middle(timed_runs, digits=9)) for name, timed_runs in runs.items()}
    row |= ratios(runs["bare"], runs["bixse"])
    row |= {
        f"{name}_cpu_us": round(middle(timed_runs, "cpu_seconds", 9) / count * 1e6) for name, timed_runs in runs.items()
    }
    return {**row, "load": round(load, 2)}


def main() -> None:
    """Measure every case, print a line each, write the table."""
    given = options(
        __doc__,
        quick={"questions": 32, "rounds": 1},
        out=OUT,
        questions=Option(2000, "asked in a round"),
        rounds=Option(5, "the median counts"),
    )
    cases = CASES[:1] if given.quick else CASES
    show((measure(*case, given.questions, given.rounds) for case in cases), given.out)


if __name__ == "__main__":
    main()

"""How near the HTTP judge comes to what a server can take.

    python benchmarks/bench_grade_server.py [--questions 2000] [--rounds 5] [--out FILE]

A server in a process of its own has a number of places (`slots`) and takes `milliseconds` for an answer, as an
inference server does whose graphics card is busy; it answers with real log-probabilities of 20 tokens. Its own limit is
slots / time. `bare` keeps 64 requests in flight with aiohttp and reads the JSON, no more; `bixse` is
`bixse.judging.judges.server_judge.ServerJudge`, from rendered questions to grades. Both ask the same server the same
questions in turn, each round in the other order; the ratio is the median over rounds of the ratio within the round.

Columns: `slots`, `milliseconds`, `limit_per_second`: of the server; `questions`, `rounds`; `bare_per_second`,
`bixse_per_second`: medians; `ratio`, `ratio_lowest`, `ratio_highest`: bixse to bare; `bare_cpu_us`, `bixse_cpu_us`:
processor time of the client for a question, in microseconds; `load`: of the machine before (1 minute).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Question
from bixse.judging.judges.dialects import request_body
from bixse.judging.judges.server_judge import ServerJudge
from bixse.judging.rubrics import load_rubric
from measuring import in_turn, make_parser, middle, ratio_with_ends, show

if TYPE_CHECKING:
    from collections.abc import Sequence

IN_FLIGHT = 64
CASES = ((16, 50.0), (32, 50.0), (64, 100.0))
"""(slots, milliseconds)."""


def serve(slots: int, milliseconds: float) -> None:
    """The server: prints its address and answers until its parent is gone."""
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

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        print(f"http://127.0.0.1:{port}", flush=True)
        while os.getppid() != 1:
            await asyncio.sleep(1)

    asyncio.run(run())


async def ask_bare(address: str, bodies: Sequence[dict[str, Any]]) -> None:
    """Every body once, as many at once as may be, with nothing around it."""
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
    """One row of the table."""
    load = os.getloadavg()[0]
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(slots), str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            return _measure(process.stdout.readline().strip(), slots, milliseconds, count, rounds, load)
        finally:
            process.kill()


def _measure(address: str, slots: int, milliseconds: float, count: int, rounds: int, load: float) -> dict[str, object]:
    rubric = load_rubric("trec-dl-0-3")
    texts = [("how do I copy a folder", f"page {i}: shutil.copytree copies a tree " * 8) for i in range(count)]
    questions = [
        Question(str(i), str(i), *both, messages=rubric.variants[0].messages(*both)) for i, both in enumerate(texts)
    ]
    with ServerJudge([address], rubric, JudgeOptions(concurrency=IN_FLIGHT)) as judge:
        bodies = [request_body(judge.form, question.messages) for question in questions]

        def ours() -> None:
            graded = sum(answer.status == "graded" for _, answer in judge.answers(questions))
            if graded != count:
                raise SystemExit(f"{count - graded} of {count} questions have no grade")

        work = {"bare": lambda: asyncio.run(ask_bare(address, bodies)), "bixse": ours}
        for name in work:
            work[name]()  # connections, and how many requests the server copes with
        runs = in_turn(work, rounds)
    median, lowest, highest = ratio_with_ends(runs["bare"], runs["bixse"])
    rate = {name: count / middle(own, digits=9) for name, own in runs.items()}
    cpu = {name: middle(own, "cpu_seconds", 9) / count * 1e6 for name, own in runs.items()}
    return {
        "slots": slots, "milliseconds": milliseconds, "limit_per_second": round(slots * 1000 / milliseconds),
        "questions": count, "rounds": rounds, "bare_per_second": round(rate["bare"]),
        "bixse_per_second": round(rate["bixse"]), "ratio": median,
        "ratio_lowest": lowest, "ratio_highest": highest,
        "bare_cpu_us": round(cpu["bare"]), "bixse_cpu_us": round(cpu["bixse"]), "load": round(load, 2),
    }  # fmt: skip


def main() -> None:
    """Measure every case, print a line each, write the table."""
    parser = make_parser(__doc__, quick="one case, 32 questions: a look, not a measurement")
    parser.add_argument("--questions", type=int, default=2000, help="asked in a round")
    parser.add_argument("--rounds", type=int, default=5, help="the median counts")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(int(options.serve[0]), float(options.serve[1]))
        return
    if min(options.questions, options.rounds) < 1:
        parser.error("expected --questions and --rounds of at least 1")
    if options.quick:
        options.questions, options.rounds = 32, 1
    cases = CASES[:1] if options.quick else CASES
    show((measure(*case, options.questions, options.rounds) for case in cases), options.out)


if __name__ == "__main__":
    main()

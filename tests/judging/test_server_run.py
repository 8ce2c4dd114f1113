"""Whole runs of `bixse grade` against a server: poisoned pairs, the key on disk, usage, other models, the dry run."""

import csv
import json
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bixse.cli.main import main
from bixse.judging.judges.client import REFUSALS
from bixse.judging.judges.endpoints import RUN, STAND_IN, Secret
from helpers.chat_server import planted, spellings_of, urlsafe_b64
from helpers.server_questions import SHARES, holds_key
from helpers.tiny_judges import save_judge

KEY = "sk/very+secret-0123456789"


def pairs_file(folder, count, ends=None):
    """Pairs of which some are planted to end badly."""
    path = folder / f"pairs{count}.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["query_id", "query", "document_id", "document"])
        for number in range(count):
            document = planted(str(number), SHARES, end=(ends or {}).get(number, ""))
            table.writerow(["q", "a query", f"d{number}", document])
    return path


def bixse(capsys, *words):
    capsys.readouterr()
    code = main(["grade", *map(str, words), "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, found


def statuses(out):
    return {row["document_id"]: row["status"] for row in pq.read_table(out / "judgements.parquet").to_pylist()}


class TestPoisonedPairs:
    @pytest.mark.parametrize("end", ["403", "django", "no-such", "402"])
    def test_one_refused_pair_is_its_own_status(self, server, tmp_path, capsys, end):
        words = ["--judge", server.scenario(), "--pairs", pairs_file(tmp_path, 41, {20: end}), "--out", tmp_path / "o"]
        for _ in range(2):  # the second run asks that pair alone
            code, found = bixse(capsys, *words)
            assert (code, found["metrics"]["statuses"]) == (3, {"graded": 40, "failed": 1})
            assert statuses(tmp_path / "o")["d20"] == "failed"

    def test_many_refused_pairs_in_a_row_do_not_stop_what_can_be_answered(self, server, tmp_path, capsys):
        ends = dict.fromkeys(range(10, 10 + 4 * REFUSALS), "403")
        pairs = pairs_file(tmp_path, 60, ends)
        for _ in range(2):
            _, found = bixse(capsys, "--judge", server.scenario(), "--pairs", pairs, "--out", tmp_path / "o")
            assert found["metrics"]["statuses"] == {"graded": 40, "failed": 20}

    def test_an_account_over_its_rate_is_not_out_of_quota(self, server, tmp_path, capsys):
        path = tmp_path / "pairs.csv"
        with path.open("w", newline="") as file:
            document = planted("a", SHARES, ["429-quota", "429-quota"])
            csv.writer(file).writerows([["query", "document"], ["a query", document]])
        code, _ = bixse(capsys, "--judge", server.scenario(), "--pairs", path, "--out", tmp_path / "o")
        assert code == 0

    def test_a_key_that_ends_stops_the_run_within_a_few_questions(self, server, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        address = server.scenario(key=KEY, key_until=50)
        pairs = pairs_file(tmp_path, 2000)
        code, found = bixse(capsys, "--judge", address, "--pairs", pairs, "--out", tmp_path / "o", "--concurrency", 8)
        assert code == 2
        assert "OPENAI_API_KEY" in found["errors"][0]
        assert server.stats(address)["counts"]["chat"] < 50 + 8 + 4 * REFUSALS
        server.change(address, key_until=10**9)
        assert bixse(capsys, "--judge", address, "--pairs", pairs, "--out", tmp_path / "o")[0] == 0


class TestKey:
    def test_no_spelling_of_it_is_written(self, server, tmp_path, capsys, monkeypatch):
        """The server repeats it in texts and in messages of errors; all files are searched as text and decoded."""
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        count = 4 * len(spellings_of(KEY))
        ends = {number: ("echo-text", "echo-error")[number % 2] for number in range(count)}
        pairs = pairs_file(tmp_path, count + 1, ends)
        code, found = bixse(capsys, "--judge", server.scenario(key=KEY), "--pairs", pairs, "--out", tmp_path / "o")
        assert code == 3
        assert Counter(statuses(tmp_path / "o").values()) == {"refused": count / 2, "failed": count / 2, "graded": 1}
        assert not holds_key(json.dumps(found), KEY)
        rows = pq.read_table(tmp_path / "o" / "judgements.parquet").to_pylist()
        assert sum(STAND_IN in row["detail"] for row in rows) == count
        (segment,) = (tmp_path / "o" / "ledger").glob("*.parquet")
        kept = pq.read_table(segment)["answer"].to_pylist()
        for text in [*kept, *(str(row) for row in rows)]:
            assert not holds_key(text, KEY), text
        for path in (path for path in (tmp_path / "o").rglob("*") if path.is_file()):
            assert KEY.encode() not in path.read_bytes()

    @pytest.mark.parametrize("spelled", spellings_of(KEY))
    def test_a_text_with_a_spelling_of_it_is_dropped(self, spelled):
        assert holds_key(f"it was {spelled}, said the server", KEY)
        assert Secret(KEY).keep(f"it was {spelled}, said the server") == STAND_IN

    @given(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=RUN, max_size=60),
        st.data(),
        st.sampled_from([str, str.upper, str.lower]),
    )
    def test_a_run_of_it_drops_a_text_and_a_shorter_part_does_not(self, key, data, case):
        start = data.draw(st.integers(0, len(key) - RUN))
        run = key[start : start + RUN]
        for spelled in (*spellings_of(run), urlsafe_b64(f"{key[:start]}{run}, and more")):
            assert Secret(key).keep(f"it was {case(spelled)}, said the server") == STAND_IN
        assert Secret(key).keep(key[: RUN - 1]) == key[: RUN - 1]

    def test_placeholders_and_other_words_stay(self):
        assert Secret("EMPTY").keep("EMPTY") == "EMPTY"
        assert Secret(KEY).keep("sk/very long secret words") == "sk/very long secret words"


class TestUsage:
    @pytest.mark.parametrize("told", ["1e999", '"many"'])
    def test_what_is_no_number_of_tokens_is_unknown(self, server, tmp_path, capsys, told):
        pairs = pairs_file(tmp_path, 12, {4: f"usage {told}"})
        words = ["--judge", server.scenario(), "--pairs", pairs, "--prices", 1e6, 0]
        code, found = bixse(capsys, *words, "--out", tmp_path / "o")
        assert (code, found["metrics"]["usage_unknown"]) == (0, 1)
        assert found["metrics"]["usd"] == pytest.approx(11 * 50)
        assert any("1 answers came without" in warning for warning in found["warnings"])


class TestAnotherModel:
    def test_its_answers_are_counted_and_told(self, server, tmp_path, capsys):
        pairs = pairs_file(tmp_path, 12, {4: "other-model", 7: "other-model"})
        code, found = bixse(capsys, "--judge", server.scenario(), "--pairs", pairs, "--out", tmp_path / "o")
        assert (code, found["metrics"]["other_models"]) == (0, {"cheap-model": 2})
        assert any("cheap-model" in warning and "judge-model" in warning for warning in found["warnings"])


class TestDryRun:
    @pytest.mark.slow
    @pytest.mark.parametrize("concurrency", [8, 16])
    def test_the_time_it_tells_is_the_time_it_takes(self, server, tmp_path, capsys, concurrency):
        pairs = pairs_file(tmp_path, 500)
        words = ["--judge", server.scenario(delay=0.15), "--pairs", pairs, "--concurrency", concurrency]
        bixse(capsys, *words, "--out", tmp_path / "o", "--max-pairs", 3 * concurrency)
        _, found = bixse(capsys, *words, "--out", tmp_path / "o", "--dry-run")
        told = found["metrics"]
        assert (told["at_once"], told["answered"]) == (concurrency, 3 * concurrency)
        started = time.perf_counter()
        code, done = bixse(capsys, *words, "--out", tmp_path / "o")
        took = time.perf_counter() - started
        assert (code, done["metrics"]["asked"]) == (0, told["questions"] - told["answered"])
        assert 1 / 1.5 < told["seconds"] / took < 1.5

    def test_a_local_judge_is_not_loaded_where_nothing_is_left_to_ask(self, tmp_path, capsys, monkeypatch):
        import transformers

        judge = save_judge(tmp_path / "judge")
        given = ["--judge", judge, "--pairs", pairs_file(tmp_path, 3), "--rubric", "binary-0-1"]
        words = [*given, "--out", tmp_path / "o"]
        bixse(capsys, *words)

        def refuse(*_, **__):
            raise AssertionError("the weights were loaded")

        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
        _, again = bixse(capsys, *words)
        assert (again["errors"], again["metrics"]["asked"]) == ([], 0)
        code, dry = bixse(capsys, *words, "--dry-run")
        assert (code, dry["metrics"]["answered"]) == (0, 3)
        code, plan = bixse(capsys, *given, "--out", tmp_path / "new", "--dry-run")
        assert (code, plan["metrics"]["counted_by"]) == (0, "tokenizer")

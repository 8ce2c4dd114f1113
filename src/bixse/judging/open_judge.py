"""Open a judge by its name, such as a server's address or a local model; settings of the verbs that open one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from bixse.engine import EngineSettings
from bixse.errors import InputError, shorten
from bixse.judging.grade_settings import JudgeOptions, NamedRubric, Prices, ServerSettings
from bixse.judging.judge import Answer, AnyJudge, Grade, Question
from bixse.judging.rubrics import Rubric, load_rubric
from bixse.relevance import MIN_RELEVANT_GRADE, GradeScale
from bixse.settings import Flag, Reads, Settings

if TYPE_CHECKING:
    from bixse.data.graded_pairs import Pair
    from bixse.judging.judges.server_judge import ServerTextModel
    from bixse.judging.spending import Spending

CROSS_ENCODER = "cross-encoder:"
REPLAY = "replay:"
FUNCTION = "function:"
DEFAULT_RUBRIC = "trec-dl-0-3"
BM25, JUDGED = "bm25", "judged"
"""Values of `candidates`: the documents that BM25 finds, or the judged documents."""
_BARE_ADDRESS = re.compile(r"localhost(?:/.*)?|(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?")
"""A host with a port. Model names of the hub have no colon."""


class JudgeSettings(JudgeOptions):
    """A judge, and the settings of its requests."""

    name: Annotated[str, Flag("JUDGE", "judge")]
    """Address of an OpenAI-compatible server, a local model, cross-encoder:NAME or replay:qrels:FILE."""

    @property
    def reads_rubric(self) -> bool:
        return not self.name.startswith((CROSS_ENCODER, REPLAY, FUNCTION))


class FunctionJudge(AnyJudge):
    """A judge that calls a function per pair (mode "function"); its name stands for it in ledgers."""

    def __init__(self, function: Callable[[str, str], Any], scale: GradeScale, name: str) -> None:
        self.function, self.scale, self.name = function, scale, name
        self.identity = {"kind": "function", "name": name, "scale": [scale.minimum, scale.maximum]}

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions; raise InputError for what is no number on the scale."""
        low, high = self.scale.minimum, self.scale.maximum
        for question in questions:
            value = self.function(question.query, question.document)
            if not isinstance(value, Real) or not low <= float(value) <= high:  # NaN is not between them either
                raise InputError(
                    f"judge {self.name}: got {shorten(value)} for the query {shorten(question.query)}; expected a "
                    f"number from {low:g} to {high:g}; fix: return a number, or state the scale: Judge(function, "
                    "scale=(0, 3))"
                )
            grade = float(value)
            yield question, Answer("graded", "function", (), grade, grade, grade, judge=self.name)


class Judge:
    """A judge to hold, call and grade with: a server, a local model, a cross-encoder, existing grades or a function.

    Args:
        source: address of an OpenAI-compatible server, a local model, cross-encoder:NAME, replay:qrels:FILE, or a
            function of query and document that returns a number.
        scale: lowest and highest grade, of a function (default: 0 to 1) or of existing grades.
        name: name of a function; answers are kept under it.
        rubric: name or file of a rubric.
        prices: US dollars per million prompt and completion tokens.
        options: settings of requests, such as `model` and `concurrency`, as in `bixse grade`.

    Raises:
        InputError: a source that cannot be a judge, or an unknown setting.

    Example:
        >>> judge = Judge(lambda query, document: 3 if query.split()[-1] in document else 0, scale=(0, 3), name="word")
        >>> judge("copy a folder", "shutil.copytree: copy a folder").relevance
        1.0
    """

    def __init__(
        self,
        source: str | Path | Callable[[str, str], Any],
        scale: tuple[float, float] | None = None,
        name: str = "",
        rubric: Any = DEFAULT_RUBRIC,
        prices: tuple[float, ...] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(source, str | Path) and not callable(source):
            raise InputError(
                f"judge: got {type(source).__name__}; expected an address, a model, or a function of query and "
                "document; fix: Judge('http://localhost:8000/v1')"
            )
        self.name = name
        self.function: FunctionJudge | None = None
        self._opened: AnyJudge | None = None
        known = {"name": f"{FUNCTION}{name}" if callable(source) else str(source), "scale": scale, **options}
        settings = {"judge": known, "rubric": rubric, "prices": {"per_million": prices}}
        self.config = JudgeConfig.load(overrides=settings)
        if callable(source):
            grades = GradeScale(*(self.config.judge.scale or (0.0, 1.0)))
            self.function = FunctionJudge(source, grades, name or "function")

    def open(self) -> AnyJudge:
        """Return the judge that answers questions, opened on first use."""
        self._opened = self._opened or self.function or self.config.open()
        return self._opened

    def __repr__(self) -> str:
        return f"Judge({self.config.judge.name!r})"

    def __call__(self, query: str, document: str) -> Grade:
        """Grade one pair; nothing is kept."""
        from bixse.data.graded_pairs import Pair
        from bixse.judging.judgements import judged

        judge, pair = self.open(), Pair("query", query, "document", document)
        answers = [answer for _, answer in judge.answers(iter(self.config.questions(pair)))]
        row = judged(pair, answers, judge.scale, self.config.prices).row
        return Grade(row["grade"], row["relevance"], row["grade_probs"], row["text"] or row["detail"])

    def close(self) -> None:
        """Close the connection or free the model."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class JudgeConfig(Settings):
    """Judge, question and price: the settings of every verb that grades.

    Example:
        >>> JudgeConfig(judge={"name": "http://localhost:8000"}).asked_rubric.name
        'trec-dl-0-3'
    """

    judge: Annotated[JudgeSettings, Flag(flat=True)]
    """The judge, and the settings of its requests."""
    rubric: NamedRubric = Field(default_factory=partial(load_rubric, DEFAULT_RUBRIC))
    """trec-dl-0-3 (default), binary-0-1, relatedness-1-5, umbrela-0-3 or a TOML file."""
    prices: Annotated[Prices, Flag(flat=True)] = Prices()
    """Prices of tokens, and the maximum cost of a run."""

    @property
    def asked_rubric(self) -> Rubric | None:
        """The rubric, or None for a judge that reads none."""
        return self.rubric if self.judge.reads_rubric else None

    @property
    def questions_per_pair(self) -> int:
        return 1 if self.asked_rubric is None else len(self.asked_rubric.variants)

    def questions(self, pair: Pair) -> list[Question]:
        """Return one question per prompt variant of the rubric."""
        ids = (pair.query_id, pair.document_id, pair.query, pair.document)
        if self.asked_rubric is None:
            return [Question(*ids)]
        return [
            Question(*ids, variant.name, variant.messages(pair.query, pair.document))
            for variant in self.asked_rubric.variants
        ]

    def open(self, spending: Spending | None = None) -> AnyJudge:
        """Open the judge; raise InputError for a name that cannot be one. A server's requests go into `spending`."""
        name, rubric, options = self.judge.name, self.rubric or load_rubric(DEFAULT_RUBRIC), self.judge
        if name.startswith(("http://", "https://")):
            from bixse.judging.judges.server_judge import ServerJudge

            return ServerJudge(name, rubric, options, spending)
        kind, colon, rest = name.partition(":")
        is_kind = f"{kind}:" in (CROSS_ENCODER, REPLAY) and not rest.startswith(("http://", "https://"))
        is_bare = _BARE_ADDRESS.fullmatch(name) is not None
        if not name.strip() or ((is_bare or (colon and not is_kind)) and not Path(name).exists()):
            raise InputError(
                f"--judge: got {shorten(name)}; expected an address (http://...), a model's name or folder, "
                "cross-encoder:NAME or replay:qrels:FILE; fix: name a judge, for a model of a chat server --judge "
                f"http://{name if is_bare else '...'} with its name as --model, for a reranker (no server is asked for "
                "one yet) --judge cross-encoder:FOLDER, for grades that exist --judge replay:qrels:FILE"
            )
        if name.startswith(REPLAY):
            from bixse.judging.judges.replay_judge import open_replay

            return open_replay(name, None if options.scale is None else GradeScale(*options.scale))
        if name.startswith(CROSS_ENCODER):
            from bixse.judging.judges.cross_encoder_judge import CrossEncoderJudge

            return CrossEncoderJudge(name.removeprefix(CROSS_ENCODER), options.score_map)
        from bixse.judging.judges.local_judge import LocalJudge

        return LocalJudge(name, rubric)


class GradeConfig(JudgeConfig):
    """Settings of `bixse grade`."""

    pairs: Annotated[Path | None, Flag(metavar="PATH"), Reads("pairs")] = None
    """Pairs with the columns query and document: .parquet, .jsonl, .csv or .tsv, as `bixse mine` writes them, or a
    folder of .parquet."""
    ledger: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder of answers to share between runs and machines (default: ledger in the --out folder)."""
    retry_failed: bool = False
    """Ask only the pairs whose answer has no grade, and ask them again."""
    max_pairs: int | None = Field(default=None, ge=0)
    """Maximum number of pairs to ask in this run (default: all)."""
    engine: Annotated[EngineSettings, Flag(flat=True)] = EngineSettings()
    """The processes that grade, and the number of shards."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide the rows, as run.json has them."""
        rubric = self.asked_rubric
        return {"rubric": None if rubric is None else {"name": rubric.name, "hash": rubric.content_hash}}


class RankConfig(JudgeConfig):
    """Settings of `bixse grade rank`."""

    collection: Annotated[Path, Flag(metavar="DIR"), Reads("collection")]
    """Folder with corpus.jsonl, queries.jsonl and qrels."""
    split: str = "test"
    """Split (qrels/NAME.tsv) whose queries are ranked and scored."""
    candidates: str = BM25
    """Documents to rank: bm25 (the best by BM25), judged (the judged documents), or a TREC run file."""
    depth: int = Field(default=100, ge=1)
    """Number of candidates per query."""
    min_relevant_grade: Annotated[float, Flag(metavar="GRADE")] = MIN_RELEVANT_GRADE
    """Grade from which a document is relevant for recall and MRR."""


class WriterSettings(ServerSettings):
    """The model that writes queries, and the settings of its requests."""

    server: Annotated[str, Flag(metavar="URL")]
    """Address of an OpenAI-compatible server."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """Sampling temperature, 0 to 2; 0 writes the most probable text."""
    max_tokens: int = Field(default=64, ge=1)
    """Maximum number of tokens per query."""

    def open(self, spending: Spending | None = None) -> ServerTextModel:
        from bixse.judging.judges.server_judge import ServerTextModel

        return ServerTextModel(self.server, self, self.temperature, self.max_tokens, spending)


class GenerateConfig(Settings):
    """Settings of `bixse generate`: the queries, and the model that writes them."""

    corpus: Annotated[Path, Flag(metavar="FILE"), Reads("corpus")]
    """JSONL file of documents: {_id, title, text}."""
    writer: Annotated[WriterSettings, Flag(flat=True)]
    """The model that writes queries, and the settings of its requests."""
    documents: int | None = Field(default=None, ge=1)
    """Number of random documents that get queries (default: all)."""
    per_document: int = Field(default=1, ge=1)
    """Number of queries per document."""
    task: str | None = None
    """Name of the task, written into each pair."""
    prompt: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Text file with instructions for the model (default: instructions and examples of the package)."""
    prices: Annotated[Prices, Flag(flat=True)] = Prices()
    """Prices of tokens, and the maximum cost of a run."""
    ledger: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder of texts to share between runs and machines (default: ledger in the --out folder)."""

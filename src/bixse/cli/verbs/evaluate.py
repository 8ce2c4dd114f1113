"""`bixse evaluate`: score models and BM25 on a collection or on a suite. `bixse report`: one page of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from bixse.cli.verb import CommandResult, Options, Output, Verb
from bixse.data.corpus import MissingDocuments
from bixse.data.run import finished_runs
from bixse.errors import InputError
from bixse.progress import progress_bar
from bixse.relevance import MIN_RELEVANT_GRADE, GradeScale
from bixse.results import LOCAL
from bixse.search.retrieval_settings import EncodingSettings
from bixse.settings import Flag, Reads, Settings

if TYPE_CHECKING:
    from bixse.evaluation.systems import System
    from bixse.relevance import Ranking


RERANK_DEPTH = 100
OF_FEW_LABELS = ("grades", "human", "scale")
OF_A_GATE = ("fail_if_worse_than", "by")
OF_A_SUITE = ("data", "tasks", "download")
OF_A_SEARCH = ("collection", "rerank", "rerank_depth", *OF_A_GATE)
OF_A_COLLECTION = (*OF_A_SEARCH, "split", "min_relevant_grade", "exclude_self", "missing_documents", *OF_FEW_LABELS)


class EvaluateSettings(EncodingSettings):
    """Settings of `bixse evaluate`.

    Example:
        >>> EvaluateSettings(model="bm25", collection="data").split
        'test'
    """

    model: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="MODEL", positional=True), Reads("system")]
    """Model folder, Hugging Face name, demo (the small model of bixse[demo]), bm25, a run file (.trec, .run), or an
    index of the collection (its folder, lancedb:PATH/TABLE or qdrant:URL/COLLECTION). Several models are compared."""
    suite: str = LOCAL
    """local (one collection), or the name of a suite: beir, beir-short, nanobeir, trec-dl, trec-dl-rerank, mteb-eng-v2,
    mteb-multilingual-v1, mteb-multilingual-v2."""
    collection: Annotated[Path | None, Flag(metavar="DIR"), Reads("collection")] = None
    """Folder with corpus.jsonl, queries.jsonl and qrels, for suite local."""
    split: str = "test"
    """Split of the collection: NAME of qrels/NAME.tsv."""
    min_relevant_grade: Annotated[float, Flag(metavar="GRADE")] = MIN_RELEVANT_GRADE
    """Lowest relevant grade for recall, MRR and MAP, and for precision with few labels."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Maximum number of tokens per text. The default is the limit of the model."""
    dimensions: Annotated[tuple[int, ...] | None, Flag(metavar="D")] = None
    """Cut the embeddings of each model to these numbers of dimensions, and compare them. The default does not cut."""
    rerank: Annotated[Path | None, Flag(metavar="DIR"), Reads("model")] = None
    """Folder of a reranker, or of a late-interaction or sparse encoder. Each model is evaluated as it is, and with its
    best documents reranked. max_length limits the model; the reranker reads as many tokens as in its training."""
    rerank_depth: int = Field(default=RERANK_DEPTH, ge=1)
    """Number of best documents per query that are reranked. The other documents follow in their order."""
    exclude_self: bool = False
    """Remove the document with the query's id from the query's ranking, for collections whose queries are also
    documents (ArguAna, Quora)."""
    missing_documents: MissingDocuments = "refuse"
    """Treatment of judgements whose document the corpus lacks, and of run files of which most queries or documents are
    not in the collection: refuse them, or count them and score the rest."""
    grades: Annotated[Path | None, Flag(metavar="FILE"), Reads("judgements")] = None
    """A judge's grades of all pairs, for run files and --human (pairs.parquet, judgements.parquet or qrels)."""
    human: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Labels of people for a sample of these pairs (a table with a column probability, or qrels)."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """Lowest and highest grade of the labels of --human. null: the lowest and the highest label in the file."""
    data: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder of a suite's data: one collection folder per task, or TREC's official files."""
    tasks: Annotated[tuple[str, ...] | None, Flag(metavar="TASK")] = None
    """Tasks of the suite to run (years for TREC). Without it, all tasks."""
    download: bool = False
    """Download missing data of the suite from the hub."""
    fail_if_worse_than: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder of an earlier evaluation of the same queries. Exit code 1 if the nDCG@10 of the model is worse: the whole
    interval of the difference lies below 0."""
    by: Annotated[float, Flag(metavar="LOSS"), Field(ge=0, le=1)] = 0.0
    """Largest mean loss of nDCG@10, in [0, 1], with which a model still passes fail_if_worse_than."""
    exact: bool = False
    """Score every document of an index exactly, even if the index is approximate."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.task is not None and self.model == ("bm25",):
            raise ValueError("got a task for bm25, which takes no instructions; expected none; fix: leave the task out")
        if self.suite != LOCAL:
            self._refuse(OF_A_COLLECTION, f"suite {self.suite}", "data alone: the tasks of a suite have their own")
            return self
        self._refuse(OF_A_SUITE, f"suite {LOCAL}", "collection alone, or the name of a suite")
        if given := [f"--{name}" for name in OF_FEW_LABELS if getattr(self, name) is not None]:
            if self.grades is None or self.human is None:
                raise ValueError(f"got {', '.join(given)} alone; expected --grades and --human; fix: give both")
            searching = (*OF_A_SEARCH, "dimensions", "max_length", "exact")
            self._refuse(searching, ", ".join(given), "run files, which embed no text")
        elif self.collection is None:
            raise ValueError("got no collection; expected one, or another suite; fix: name its folder, or the grades "
                             "and run files alone")  # fmt: skip
        if self.rerank is None and self.rerank_depth != RERANK_DEPTH:
            raise ValueError("got rerank_depth without rerank; expected both; fix: give --rerank DIR")
        gates = [f"--{name.replace('_', '-')}" for name in OF_A_GATE if getattr(self, name)]
        systems = len(self.model) * len(self.dimensions or (None,)) * (1 if self.rerank is None else 2)
        if gates and (self.fail_if_worse_than is None or systems > 1):
            raise ValueError(f"got {', '.join(gates)} and {systems} models or dimensions; expected "
                             "--fail-if-worse-than for one model; fix: evaluate the others without it")  # fmt: skip
        return self

    def _refuse(self, names: Sequence[str], where: str, expected: str) -> None:
        fields = type(self).model_fields
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ValueError(f"got {', '.join(given)} for {where}; expected {expected}; fix: leave it out")


def run(settings: EvaluateSettings, options: Options) -> CommandResult:
    """Search, score, and return tables."""
    from bixse.evaluation.open_system import open_system
    from bixse.evaluation.systems import EncoderSystem

    if settings.grades is not None:
        if options.report:
            raise InputError("--report: got it with --grades, which makes no run; expected one; fix: leave it out")
        return _from_few_labels(settings, settings.grades, options.out)
    shared = settings.model_dump(include={"max_length", "task", "cache", "exact"})
    systems = [
        open_system(model, **shared, dimensions=cut)
        for model in settings.model
        for cut in dict.fromkeys(settings.dimensions or (None,))
    ]
    uncut = [system.label for system in systems if settings.dimensions and not isinstance(system, EncoderSystem)]
    if uncut:
        raise InputError(
            f"--dimensions: got it for {uncut[0]}, which embeds no texts here; expected models alone; fix: leave "
            "--dimensions out"
        )
    if settings.exact and not any(hasattr(system, "exact") for system in systems):  # an index
        got = ", ".join(settings.model)
        raise InputError(f"--exact: got it for {got}; expected an index among the models; fix: leave it out")
    if settings.rerank is not None:
        from bixse.evaluation.reranking import RerankedSystem

        depth = settings.rerank_depth
        systems = [each for first in systems for each in (first, RerankedSystem(first, settings.rerank, depth))]
    work = _on_suite if settings.suite != LOCAL else _on_collection
    return work(settings, systems, options.out)


def _on_collection(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.data.joined import QueryCounts
    from bixse.evaluation.collection_task import collection_task
    from bixse.evaluation.compare_evaluations import evaluate_systems
    from bixse.evaluation.gate import gate, read_baseline

    assert settings.collection is not None
    chosen = settings.model_dump(include={"split", "exclude_self", "min_relevant_grade", "missing_documents"})
    task = collection_task(settings.collection, **chosen)
    # before the search, to refuse a baseline of another collection at once
    baseline = None if settings.fail_if_worse_than is None else read_baseline(settings.fail_if_worse_than, task)
    result = evaluate_systems(systems, task, out, progress_bar)
    evaluations = [scores[task.name] for scores in result.scores.values()]
    warnings = list(dict.fromkeys(line for each in evaluations for line in each.warnings))
    counts = {each.queries: None for each in evaluations}
    queries = next(iter(counts)) if len(counts) == 1 else QueryCounts(*next(iter(counts))[:2])
    heading = f"{settings.collection} ({settings.split}, {queries}"
    metrics, names = result.plain(), {"results": "results.json", "record": "run.json"}
    if len(systems) == 1:
        precision = {"precision": result.precision} if result.precision else {}
        heading = f"{systems[0].label} on {heading}{''.join(f', {name}' for name in precision.values())}"
        (evaluation,) = evaluations
        metrics = {**evaluation.metrics, **precision}
        names = {"run": "run.trec", "record": "run.json"}
    artifacts = {name: str(out / file) for name, file in names.items()} if out else {}
    text = f"{heading})\n\n{result.text()}"
    if baseline is None:
        return CommandResult(text, metrics, artifacts, warnings)
    tested = gate(evaluation, baseline, str(settings.fail_if_worse_than), settings.by)
    metrics["gate"] = tested.plain()
    line = f"{systems[0].label} is {tested.text()}"
    few = [f"the gate passes since it cannot tell: {tested.difference.few}"] if tested.difference.few else []
    errors = [] if tested.passed else [f"got {line}; expected no loss above {settings.by:g}; fix: find what changed"]
    warnings += few
    return CommandResult(f"{text}\n\n{line}", metrics, artifacts, warnings, errors, 1 - tested.passed)


def read_ranking(path: str, contradicted: list[str] | None = None) -> Ranking:
    """Read a TREC run as `read_run`, or that of a folder of `bixse evaluate`; refuse systems that have to search."""
    from bixse.data.trec import read_run
    from bixse.evaluation.open_system import run_file

    file = run_file(Path(path))
    if file is None:
        raise InputError(
            f"{path}: got no run; expected a run file (.trec, .run) or an output folder of `bixse evaluate`; fix: "
            "check the path; for a model, run `bixse evaluate` or `bixse search` with --out first"
        )
    return read_run(file, contradicted)


def _from_few_labels(settings: EvaluateSettings, grades: Path, out: Path | None) -> CommandResult:
    from bixse.data.joined import doubt_ranks
    from bixse.lab.few_labels import few_labels_of_files

    assert settings.human is not None
    contradicted: dict[str, list[str]] = {name: [] for name in settings.model}
    runs = {name: read_ranking(name, contradicted[name]) for name in settings.model}
    stated = GradeScale(*settings.scale) if settings.scale else None
    path = out / "few_labels.json" if out is not None else None
    result, wrong, people = few_labels_of_files(runs, grades, settings.human, stated, settings.min_relevant_grade, path)
    ends = f"{people.scale.minimum:g} to {people.scale.maximum:g}"
    warnings = [line for name, run in runs.items() for line in doubt_ranks(name, contradicted[name], run)]
    warnings += [*result.joined] + ([] if stated else [f"the scale {ends} is that of the labels found; state --scale"])
    if len(people.plans) > 1:
        warnings.append(f"{people.path}: got labels of {len(people.plans)} plans of bixse ui; expected one, as their "
                        "probabilities do not compare; fix: label into a new file (bixse ui --labels)")  # fmt: skip
    artifacts = {"results": str(path)} if path is not None else {}
    text = "\n".join([result.text(), *wrong])
    return CommandResult(text, asdict(result), artifacts, warnings, exit_code=3 if wrong else 0)


def _on_suite(settings: EvaluateSettings, systems: Sequence[System], out: Path | None) -> CommandResult:
    from bixse.suites.known_suites import SUITES
    from bixse.suites.suite_run import OUT_FOLDER, evaluate_suite

    chosen = settings.model_dump(include={"suite", "data", "tasks", "download"})
    result = evaluate_suite(systems, out=out, progress=progress_bar, **chosen)
    folder = out or (OUT_FOLDER / settings.suite if SUITES[settings.suite].engine == "mteb" else None)
    artifacts = {"results": str(folder / "results.json"), "record": str(folder / "run.json")} if folder else {}
    code = 3 if result.failures else 0
    return CommandResult(result.text(), result.plain(), artifacts, list(result.notes), exit_code=code)


OUT = "Folder for records, runs and figures per query; a stopped command continues there. mteb: runs/evaluation/SUITE."
FIRST = ("model", "collection", "split", "suite", "data")
VERB = Verb(EvaluateSettings, Options, run, out=Output(OUT), report=True, first=FIRST)


class ReportSettings(Settings):
    """Settings of `bixse report`.

    Example:
        >>> ReportSettings(runs="runs/mine").runs
        (PosixPath('runs/mine'),)
    """

    runs: Annotated[tuple[Path, ...], Field(min_length=1), Flag(metavar="RUN", positional=True)]
    """Folders of finished runs: quickstart, grade, train, merge, evaluate, calibrate, sweep, study."""
    baseline: str | None = None
    """Name of the evaluated system that every other one is compared with. null: that of the first run."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """The evaluated collection, for the texts. null: the folder that the evaluation names."""
    title: str = ""
    """Title of the page. The default names the runs."""


def run_report(settings: ReportSettings, options: Options) -> CommandResult:
    """Make the page of the runs."""
    for each in settings.runs:  # before heavy imports: a wrong folder is refused at once
        finished_runs(each)
    from bixse.reporting import report

    page = report(*settings.runs, **settings.model_dump(include={"baseline", "collection", "title"}))
    path = page.save(options.folder)
    comparisons = page.data.model_dump(mode="json", include={"comparisons"})
    return CommandResult(f"{page}\n\nreport: {path}", comparisons, {"report": str(path)})


REPORT = Verb(ReportSettings, Options, run_report, out=Output("The page.", "report.html", "FILE"))

"""The evaluation suites as data: which tasks, how each is scored, whose they are and where their data come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bixse.errors import InputError, did_you_mean

Engine: TypeAlias = Literal["folders", "short", "trec-dl", "trec-dl-rerank", "mteb"]
"""What runs a suite: our evaluator on collection folders (all or a part of each), on TREC files, or mteb itself."""
BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"
"""Where the BEIR authors keep their data sets."""


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite that our own evaluator runs on a collection folder.

    Example:
        >>> SuiteTask("FiQA2018", "fiqa", "mteb/fiqa", exclude_self=True).folders
        ('FiQA2018', 'fiqa')
    """

    name: str
    """mteb's name; the folder below --data has this name or `beir_name`."""
    beir_name: str
    """The folder in BEIR's own archives."""
    hub_name: str | None
    """The data set on the hub; None for one that its licence keeps off it."""
    splits: tuple[str, ...] = ("test",)
    """Names its qrels file may have; the first one there is read."""
    exclude_self: bool = False
    """Leave the document with the query's own id out of its answers, as mteb does for this task."""
    group: str | None = None
    """Tasks of one group count as one: their mean."""
    archive: str | None = None
    """The archive at BEIR_URL that holds the folder; None: there is none."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Names a local folder may have, in the order they are looked for."""
        return tuple(dict.fromkeys((self.name, self.beir_name)))

    @property
    def fetch(self) -> str:
        """The command that brings the data into the folder below which tasks lie."""
        if self.hub_name is None:
            return "its licence lets nobody pass it on: see https://github.com/beir-cellar/beir/wiki/Datasets-available"
        if self.archive is None:
            return f"--download ({self.hub_name} on the hub)"
        return f"curl -LO {BEIR_URL}/{self.archive}.zip && unzip {self.archive}.zip, or --download"


@dataclass(frozen=True)
class Suite:
    """A named set of tasks."""

    name: str
    """As given to --suite."""
    about: str
    """One line."""
    engine: Engine
    """What runs it."""
    citation: str
    """Whose it is."""
    tasks: tuple[SuiteTask, ...] = ()
    """Of the engines that read collection folders."""
    optional: tuple[SuiteTask, ...] = ()
    """Tasks that take part where their folders are there, and are not missed where they are not."""
    benchmark: str | None = None
    """mteb's name of the benchmark, of the engine "mteb"."""
    note: str | None = None
    """What a reader of its figures has to know."""


def _beir(name: str, folder: str, hub: str | None = None, exclude_self: bool = False, split: str = "test") -> SuiteTask:
    return SuiteTask(name, folder, f"mteb/{hub or folder}", (split,), exclude_self, archive=folder)


FORUMS = (
    "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats", "tex", "unix",
    "webmasters", "wordpress",
)  # fmt: skip
"""The twelve parts of CQADupStack."""
BEIR_TASKS = (
    _beir("TRECCOVID", "trec-covid"),
    _beir("NFCorpus", "nfcorpus"),
    _beir("NQ", "nq"),
    _beir("HotpotQA", "hotpotqa"),
    _beir("FiQA2018", "fiqa", exclude_self=True),
    _beir("ArguAna", "arguana", exclude_self=True),
    _beir("Touche2020", "webis-touche2020", "touche2020"),
    *(
        SuiteTask(
            f"CQADupstack{forum.capitalize()}Retrieval",
            f"cqadupstack/{forum}",
            f"mteb/cqadupstack-{forum}" if forum != "android" else "mteb/CQADupstackAndroidRetrieval",
            group="CQADupstackRetrieval",
            archive="cqadupstack",
        )
        for forum in FORUMS
    ),
    _beir("QuoraRetrieval", "quora", exclude_self=True),
    _beir("DBPedia", "dbpedia-entity", "dbpedia"),
    _beir("SCIDOCS", "scidocs"),
    _beir("FEVER", "fever", exclude_self=True),
    _beir("ClimateFEVER", "climate-fever"),
    _beir("SciFact", "scifact"),
    _beir("MSMARCO", "msmarco", exclude_self=True, split="dev"),
)
"""BEIR as mteb runs it: 15 tasks, one of which is the mean of twelve; MSMARCO on its dev queries."""
LICENSED_TASKS = tuple(
    SuiteTask(name, beir_name, None)
    for name, beir_name in (
        ("BioASQ", "bioasq"),
        ("Signal1M", "signal1m"),
        ("TRECNEWS", "trec-news"),
        ("Robust04", "robust04"),
    )
)
"""BEIR's tasks that their licences keep off the web."""
NANO = (
    "ArguAna", "ClimateFever", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ", "Quora",
    "SCIDOCS", "SciFact", "Touche2020",
)  # fmt: skip
"""The tasks of NanoBEIR, by mteb's names without Nano and Retrieval."""
SHORT = ("DBPedia", "HotpotQA", "FiQA2018", "FEVER", "QuoraRetrieval", "NQ")
"""The BiXSE paper's validation set, from its appendix."""
BEIR_CITATION = "Thakur et al. 2021, BEIR, arXiv:2104.08663"
MMTEB_CITATION = "Enevoldsen et al. 2025, MMTEB, arXiv:2502.13595"
TREC_CITATION = "Craswell et al. 2020 to 2025, overviews of the TREC Deep Learning track"

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "beir",
            "15 tasks (one the mean of CQADupStack's twelve), and the four licensed ones where they are there",
            "folders",
            BEIR_CITATION,
            BEIR_TASKS,
            LICENSED_TASKS,
            note="MSMARCO, on its dev queries, is training data of most retrievers: it is no zero-shot task",
        ),
        Suite(
            "beir-short",
            "the BiXSE paper's validation set: six tasks of BEIR, each cut to 256 queries and 131,072 passages",
            "short",
            "BiXSE, COLM 2025, appendix; " + BEIR_CITATION,
            tuple(task for task in BEIR_TASKS if task.name in SHORT),
            note="these are test tasks of BEIR: a checkpoint chosen on them has seen the test (selection leak); report "
            "such a model on other tasks",
        ),
        Suite(
            "nanobeir",
            "13 tasks of BEIR cut to 50 queries: minutes on a laptop",
            "folders",
            "Garcia Arango et al. 2024, NanoBEIR; " + BEIR_CITATION,
            tuple(
                SuiteTask(f"Nano{name}Retrieval", f"Nano{name}", f"mteb/Nano{name}Retrieval", ("train", "test"))
                for name in NANO
            ),
        ),
        Suite(
            "trec-dl",
            "TREC Deep Learning passages 2019 to 2023 by year, over the union of judged passages or the full corpora",
            "trec-dl",
            TREC_CITATION,
            note="over judged passages alone nDCG is higher than over a full corpus: do not compare the two",
        ),
        Suite(
            "trec-dl-rerank",
            "TREC Deep Learning passages by year: the official candidate lists put in a new order",
            "trec-dl-rerank",
            TREC_CITATION,
        ),
        Suite("mteb-eng-v2", "MTEB(eng, v2): 41 tasks of all kinds, by mteb", "mteb", MMTEB_CITATION,
              benchmark="MTEB(eng, v2)"),
        Suite("mteb-multilingual-v1", "MTEB(Multilingual, v1): 132 tasks, by mteb", "mteb", MMTEB_CITATION,
              benchmark="MTEB(Multilingual, v1)"),
        Suite("mteb-multilingual-v2", "MTEB(Multilingual, v2): 131 tasks, by mteb", "mteb", MMTEB_CITATION,
              benchmark="MTEB(Multilingual, v2)"),
    )
}  # fmt: skip
"""Suite by name; beside these, `local` is any one collection folder."""
LOCAL = "local"
"""The suite of one collection folder, the default."""

INSTRUCTIONS = {
    "FEVER": "fever",
    "FEVERHardNegatives": "fever",
    "HotpotQA": "hotpotqa",
    "HotpotQAHardNegatives": "hotpotqa",
    "NQ": "nq",
    "MSMARCO": "msmarco_passage",
    "QuoraRetrieval": "quora_duplicates",
    "DuRetrieval": "dureader",
    "T2Retrieval": "t2ranking",
    "MIRACLRetrieval": "miracl",
    "MIRACLRetrievalHardNegatives": "miracl",
    "MrTidyRetrieval": "mrtydi",
    "NanoFEVERRetrieval": "fever",
    "NanoHotpotQARetrieval": "hotpotqa",
    "NanoNQRetrieval": "nq",
    "NanoMSMARCORetrieval": "msmarco_passage",
    "NanoQuoraRetrieval": "quora_duplicates",
    "TREC-DL": "msmarco_passage",
}
"""Task -> the name it has in the table of instructions of the paper (`bixse.data.task_instructions`)."""


def suite_named(name: str) -> Suite:
    """A suite by its name.

    Raises:
        InputError: there is none of that name.

    Example:
        >>> len(suite_named("nanobeir").tasks)
        13
    """
    if name in SUITES:
        return SUITES[name]
    raise InputError(
        f"suite: got {name!r}; expected one of {', '.join((LOCAL, *SUITES))}; fix: {did_you_mean(name, SUITES)}"
    )

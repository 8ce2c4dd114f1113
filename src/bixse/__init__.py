"""bixse: train dense retrievers from graded relevance."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bixse.data.collection_files import load_collection as load_collection
    from bixse.data.conversion.convert import convert as convert
    from bixse.data.conversion.convert_settings import ConvertSettings as ConvertSettings
    from bixse.data.graded_pairs import GradedPairs as GradedPairs
    from bixse.data.pairs_files import load_graded_pairs as load_graded_pairs
    from bixse.data.pairs_files import load_pairs as load_pairs
    from bixse.encoders.loading.build import build_encoder as build_encoder
    from bixse.encoders.pool import encode_on as encode_on
    from bixse.encoders.relevance_model import RelevanceModel as RelevanceModel
    from bixse.encoders.relevance_model import load_relevance_model as load_relevance_model
    from bixse.evaluation.evaluate import evaluate as evaluate
    from bixse.evaluation.suites.known_suites import SUITES as SUITES
    from bixse.evaluation.suites.suite_result import SuiteResult as SuiteResult
    from bixse.evaluation.suites.suite_run import evaluate_suite as evaluate_suite
    from bixse.experiments.sweep.sweep import sweep as sweep
    from bixse.experiments.sweep.sweep_config import SweepConfig as SweepConfig
    from bixse.grading.grade import GradeSettings as GradeSettings
    from bixse.grading.grade import grade as grade
    from bixse.grading.open_judge import open_judge as open_judge
    from bixse.grading.rubrics import load_rubric as load_rubric
    from bixse.losses.bixse import BiXSELoss as BiXSELoss
    from bixse.losses.infonce import InfoNCELoss as InfoNCELoss
    from bixse.losses.lambda_loss import LambdaLoss as LambdaLoss
    from bixse.losses.margin_mse import MarginMSELoss as MarginMSELoss
    from bixse.losses.pairwise_bce import PairwiseBCELoss as PairwiseBCELoss
    from bixse.losses.relevance_head import save_relevance_head as save_relevance_head
    from bixse.losses.soft_infonce import SoftInfoNCELoss as SoftInfoNCELoss
    from bixse.relevance import GradeScale as GradeScale
    from bixse.retrieval.index import open_index as open_index
    from bixse.retrieval.index_build import make_index as make_index
    from bixse.studies.engine.run_study import run_study as run_study
    from bixse.studies.engine.study_config import StudyConfig as StudyConfig
    from bixse.studies.quickstart.quickstart import quickstart as quickstart
    from bixse.studies.quickstart.quickstart_config import QuickstartConfig as QuickstartConfig
    from bixse.training.config import TrainConfig as TrainConfig
    from bixse.training.loop.callbacks import SaveRelevanceHead as SaveRelevanceHead
    from bixse.training.loop.trainer import GradedTrainer as GradedTrainer
    from bixse.training.loop.trainer import GradedTrainingArguments as GradedTrainingArguments
    from bixse.training.merging.merge_models import MergeModelsConfig as MergeModelsConfig
    from bixse.training.merging.merge_models import merge_models as merge_models
    from bixse.training.recipe import train as train

_HOMES = {
    "SUITES": "evaluation.suites.known_suites",
    "BiXSELoss": "losses.bixse",
    "ConvertSettings": "data.conversion.convert_settings",
    "GradeScale": "relevance",
    "GradeSettings": "grading.grade",
    "GradedPairs": "data.graded_pairs",
    "GradedTrainer": "training.loop.trainer",
    "GradedTrainingArguments": "training.loop.trainer",
    "InfoNCELoss": "losses.infonce",
    "LambdaLoss": "losses.lambda_loss",
    "MergeModelsConfig": "training.merging.merge_models",
    "MarginMSELoss": "losses.margin_mse",
    "PairwiseBCELoss": "losses.pairwise_bce",
    "QuickstartConfig": "studies.quickstart.quickstart_config",
    "RelevanceModel": "encoders.relevance_model",
    "SaveRelevanceHead": "training.loop.callbacks",
    "SoftInfoNCELoss": "losses.soft_infonce",
    "StudyConfig": "studies.engine.study_config",
    "SuiteResult": "evaluation.suites.suite_result",
    "SweepConfig": "experiments.sweep.sweep_config",
    "TrainConfig": "training.config",
    "build_encoder": "encoders.loading.build",
    "convert": "data.conversion.convert",
    "encode_on": "encoders.pool",
    "evaluate": "evaluation.evaluate",
    "evaluate_suite": "evaluation.suites.suite_run",
    "grade": "grading.grade",
    "load_collection": "data.collection_files",
    "load_graded_pairs": "data.pairs_files",
    "load_pairs": "data.pairs_files",
    "load_relevance_model": "encoders.relevance_model",
    "load_rubric": "grading.rubrics",
    "make_index": "retrieval.index_build",
    "merge_models": "training.merging.merge_models",
    "open_index": "retrieval.index",
    "open_judge": "grading.open_judge",
    "quickstart": "studies.quickstart.quickstart",
    "run_study": "studies.engine.run_study",
    "save_relevance_head": "losses.relevance_head",
    "sweep": "experiments.sweep.sweep",
    "train": "training.recipe",
}
"""Public name -> module; imported on first use, so that `import bixse` is light."""

__all__ = [
    "SUITES",
    "BiXSELoss",
    "ConvertSettings",
    "GradeScale",
    "GradeSettings",
    "GradedPairs",
    "GradedTrainer",
    "GradedTrainingArguments",
    "InfoNCELoss",
    "LambdaLoss",
    "MarginMSELoss",
    "MergeModelsConfig",
    "PairwiseBCELoss",
    "QuickstartConfig",
    "RelevanceModel",
    "SaveRelevanceHead",
    "SoftInfoNCELoss",
    "StudyConfig",
    "SuiteResult",
    "SweepConfig",
    "TrainConfig",
    "__version__",
    "build_encoder",
    "convert",
    "encode_on",
    "evaluate",
    "evaluate_suite",
    "grade",
    "load_collection",
    "load_graded_pairs",
    "load_pairs",
    "load_relevance_model",
    "load_rubric",
    "make_index",
    "merge_models",
    "open_index",
    "open_judge",
    "quickstart",
    "run_study",
    "save_relevance_head",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bixse' has no attribute {name!r}")
    return getattr(import_module(f"bixse.{_HOMES[name]}"), name)

"""Public names of bixse and where they live; each is imported on first use."""

from .data.collection_files import load_collection as load_collection
from .data.conversion.convert import convert as convert
from .data.conversion.convert_settings import ConvertSettings as ConvertSettings
from .data.graded_pairs import GradedPairs as GradedPairs
from .data.pairs_files import load_graded_pairs as load_graded_pairs
from .data.pairs_files import load_pairs as load_pairs
from .encoders.loading.build import build_encoder as build_encoder
from .encoders.loading.build import load_relevance_model as load_relevance_model
from .encoders.pool import encode_on as encode_on
from .encoders.relevance_model import RelevanceModel as RelevanceModel
from .evaluation.calibration.calibrate import CalibrateSettings as CalibrateSettings
from .evaluation.calibration.calibrate import calibrate as calibrate
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.suites.known_suites import SUITES as SUITES
from .evaluation.suites.suite_result import SuiteResult as SuiteResult
from .evaluation.suites.suite_run import evaluate_suite as evaluate_suite
from .grading.audit.audit_judges import AuditSettings as AuditSettings
from .grading.audit.audit_judges import audit_judges as audit_judges
from .grading.audit.calibrate_grades import GradeMapSettings as GradeMapSettings
from .grading.audit.calibrate_grades import calibrate_grades as calibrate_grades
from .grading.grade import GradeSettings as GradeSettings
from .grading.grade import grade as grade
from .grading.open_judge import open_judge as open_judge
from .grading.rubrics import load_rubric as load_rubric
from .losses.bixse import BiXSELoss as BiXSELoss
from .losses.infonce import InfoNCELoss as InfoNCELoss
from .losses.lambda_loss import LambdaLoss as LambdaLoss
from .losses.margin_mse import MarginMSELoss as MarginMSELoss
from .losses.pairwise_bce import PairwiseBCELoss as PairwiseBCELoss
from .losses.relevance_head import save_relevance_head as save_relevance_head
from .losses.soft_infonce import SoftInfoNCELoss as SoftInfoNCELoss
from .relevance import GradeScale as GradeScale
from .retrieval.index.build import make_index as make_index
from .retrieval.index.search import open_index as open_index
from .retrieval.search_collection import search_collection as search_collection
from .training.config import TrainConfig as TrainConfig
from .training.loop.callbacks import SaveRelevanceHead as SaveRelevanceHead
from .training.loop.trainer import GradedTrainer as GradedTrainer
from .training.loop.trainer import GradedTrainingArguments as GradedTrainingArguments
from .training.merging.merge_models import MergeModelsConfig as MergeModelsConfig
from .training.merging.merge_models import merge_models as merge_models
from .training.recipe import train as train
from .training.sweep.sweep import sweep as sweep
from .training.sweep.sweep_config import SweepConfig as SweepConfig

__version__: str

"""Public names of bixse and where they live, ordered by noun; each is imported on first use."""

# ruff: isort: skip_file

# Pairs: query, document, relevance
from .data.graded_pairs import Pairs as Pairs
from .data.pairs_files import load_graded_pairs as load_graded_pairs
from .data.pairs_files import load_pairs as load_pairs
from .relevance import GradeScale as GradeScale
from .mining.mine import mine as mine
from .converting.convert import convert as convert
from .converting.convert_settings import ConvertSettings as ConvertSettings

# Collections and systems: what is evaluated, and what came out
from .evaluation.evaluate_files import evaluate as evaluate
from .evaluation.evaluate import Evaluation as Evaluation
from .evaluation.compare_evaluations import compare as compare
from .evaluation.compare_evaluations import Comparisons as Comparisons
from .evaluation.graded_evaluator import GradedInformationRetrievalEvaluator as GradedInformationRetrievalEvaluator
from .data.collection import Collection as Collection
from .data.collection import load_collection as load_collection
from .evaluation.collection_task import collection_task as collection_task
from .evaluation.systems import EncoderSystem as EncoderSystem
from .search.search_collection import search_collection as search_collection
from .index.make_index import make_index as make_index
from .index.search import open_index as open_index
from .index.index_settings import IndexSettings as IndexSettings

# Judges: who grades
from .judging.open_judge import Judge as Judge
from .judging.grade import grade as grade
from .judging.grade import BudgetReached as BudgetReached
from .judging.open_judge import GradeConfig as GradeConfig
from .judging.rubrics import load_rubric as load_rubric
from .audit.audit import audit_judges as audit_judges
from .audit.audit_settings import AuditSettings as AuditSettings
from .audit.calibrate_grades import calibrate_grades as calibrate_grades
from .audit.audit_settings import GradeMapSettings as GradeMapSettings
from .lab.few_labels import evaluate_few_labels as evaluate_few_labels

# Models and losses: what is trained
from .encoders.relevance_model import RelevanceModel as RelevanceModel
from .encoders.loading.build import build_encoder as build_encoder
from .encoders.loading.load_scorer import load_relevance_model as load_relevance_model
from .losses.bixse import BiXSELoss as BiXSELoss
from .losses.infonce import InfoNCELoss as InfoNCELoss
from .losses.infonce import SoftInfoNCELoss as SoftInfoNCELoss
from .losses.distillation import MarginMSELoss as MarginMSELoss
from .losses.distillation import DistillKLLoss as DistillKLLoss
from .losses.pairwise import LambdaLoss as LambdaLoss
from .losses.pairwise import PairwiseBCELoss as PairwiseBCELoss
from .losses.relevance_head import SaveRelevanceHead as SaveRelevanceHead
from .losses.relevance_head import save_relevance_head as save_relevance_head
from .training.train import train as train
from .training.train import Trained as Trained
from .training.config import TrainConfig as TrainConfig
from .training.loop.trainer import GradedTrainer as GradedTrainer
from .training.loop.trainer import GradedTrainingArguments as GradedTrainingArguments
from .training.merge_models import merge as merge
from .training.merge_models import Merged as Merged

# Probabilities: what a score means
from .calibration.calibrate import calibrate as calibrate
from .calibration.calibrate import Calibration as Calibration
from .calibration.calibrate import NotReachable as NotReachable
from .calibration.calibrate_settings import CalibrateSettings as CalibrateSettings

# Reports: pages of any results
from .reporting import report as report

# Errors: what went wrong, and how to fix it
from .errors import BixseError as BixseError
from .errors import InputError as InputError
from .errors import InterruptedRunError as InterruptedRunError

# Studies and suites: many runs
from .lab.quickstart import quickstart as quickstart
from .lab.lab_config import QuickstartConfig as QuickstartConfig
from .lab.sweep import sweep as sweep
from .lab.lab_config import SweepConfig as SweepConfig
from .lab.studies.run_study import run_study as run_study
from .lab.lab_config import StudyConfig as StudyConfig
from .suites.suite_run import evaluate_suite as evaluate_suite
from .suites.suite_run import SuiteResult as SuiteResult
from .suites.known_suites import SUITES as SUITES

__version__: str

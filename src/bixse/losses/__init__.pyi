"""Public names of the losses; each is imported on first use."""

from .base import GradedLoss as GradedLoss
from .bixse import BiXSELoss as BiXSELoss
from .catalogue import LOSSES as LOSSES
from .catalogue import build_loss as build_loss
from .distillation import DistillKLLoss as DistillKLLoss
from .distillation import MarginMSELoss as MarginMSELoss
from .infonce import InfoNCELoss as InfoNCELoss
from .infonce import SoftInfoNCELoss as SoftInfoNCELoss
from .matryoshka import MatryoshkaLoss as MatryoshkaLoss
from .pairwise import LambdaLoss as LambdaLoss
from .pairwise import PairwiseBCELoss as PairwiseBCELoss
from .scores import ScoreLoss as ScoreLoss
from .targets import GradedTargets as GradedTargets
from .tiles.bce import graded_bce as graded_bce

"""Public names of the losses; each is imported on first use."""

from .base import GradedLoss as GradedLoss
from .bixse import BiXSELoss as BiXSELoss
from .catalogue import LOSSES as LOSSES
from .catalogue import build_loss as build_loss
from .distillation import DistillKLLoss as DistillKLLoss
from .distillation import MarginMSELoss as MarginMSELoss
from .distillation import WassersteinLoss as WassersteinLoss
from .infonce import InfoNCELoss as InfoNCELoss
from .infonce import SoftInfoNCELoss as SoftInfoNCELoss
from .pairwise import LambdaLoss as LambdaLoss
from .pairwise import PairwiseBCELoss as PairwiseBCELoss
from .scores import ScoreLoss as ScoreLoss
from .sums import AnchorLoss as AnchorLoss
from .sums import MatryoshkaLoss as MatryoshkaLoss
from .sums import SpreadOutLoss as SpreadOutLoss
from .sums import SumLoss as SumLoss
from .targets import GradedTargets as GradedTargets
from .tiles.bce import graded_bce as graded_bce

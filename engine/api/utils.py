"""The names of the old module `trainbus.engine.utils`, for older programs."""

from ..evaluation.outputs import EvalLoopOutput as EvalLoopOutput
from ..evaluation.outputs import EvalPrediction as EvalPrediction
from ..evaluation.outputs import PredictionOutput as PredictionOutput
from ..evaluation.outputs import TrainOutput as TrainOutput
from ..evaluation.outputs import plain as plain
from ..evaluation.outputs import speed_metrics as speed_metrics
from .logging_setup import print_messages as print_messages
from .seeding import enable_full_determinism as enable_full_determinism
from .seeding import set_seed as set_seed

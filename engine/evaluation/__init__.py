"""Evaluation and prediction: the loop, its outputs, and generation."""

from ...lazy import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "loop": (
            "evaluation_loop",
            "prediction_step",
        ),
        "outputs": (
            "EvalLoopOutput",
            "EvalPrediction",
            "PredictionOutput",
        ),
        "seq2seq": ("Seq2SeqTrainer",),
    },
)

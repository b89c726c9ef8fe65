"""Evaluation and prediction: the loop, its results and metrics, and generation.

| Module | Subject |
| --- | --- |
| `loop` | One pass over a loader. |
| `prediction` | Loss, logits and labels of one batch. |
| `results`, `gathering` | Results of all batches and ranks. |
| `metric_names` | Whether a metric measures the quality of the model, and whether higher or lower is better. |
| `metrics` | Checks and names metrics, and makes them equal on all ranks. |
| `evaluation_record` | The record of one evaluation, and the plan of the next evaluation. |
| `modes` | Training mode and evaluation mode of modules. |
| `rehearsal`, `isolation` | The names of the metrics, found with one batch and without an effect on the run. |
| `no_batch` | The warning about an evaluation that gets no batch. |
| `metric_set`, `readings` | `Metrics`: metrics by name, and the values that they read from the outputs. |
| `streamed` | The interface of metrics that read each batch. |
| `row_slice` | Evaluation on a random subset, and its confidence interval. |
| `bundled`, `metric_files` | The bundled metrics, and metrics in files. |
| `metric_modules` | A metric of the library `evaluate` as `compute_metrics`. |
| `outputs` | What trainers return and metric functions receive. |
| `seq2seq` | `Seq2SeqTrainer`, which evaluates generated sequences. |
"""

from ...lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "loop": ("evaluation_loop",),
        "outputs": (
            "EvalLoopOutput",
            "EvalPrediction",
            "PredictionOutput",
        ),
        "prediction": ("prediction_step",),
        "seq2seq": ("Seq2SeqTrainer",),
    },
)

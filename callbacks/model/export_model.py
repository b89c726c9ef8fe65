"""Export the trained model for inference."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage, order


@dataclass
class ExportModel(Callback):
    """Writes the trained model to `<output_dir>/export/model.pt2`. PyTorch runs this file without the model's code.

    Set `do_export=True` in the arguments to use the callback. The callback writes the file at the end of training. With
    `load_best_model_at_end=True`, the file has the best model. Load the file with `torch.export.load(path).module()`.
    To write the file without training, call `trainer.export_model()`.

    Raises:
        ModelError: if the model cannot be traced, or if its weights are sharded.
    """

    arguments = ("do_export",)

    folder: str | None = None
    """The folder of the file. Default: `export` in the output folder."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ExportModel | None:
        return cls() if args.do_export else None

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        run.services.export_model(self.folder)

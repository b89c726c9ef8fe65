"""Export the trained model for inference."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage, order


@dataclass
class ExportModel(Callback):
    """Writes the trained model as `<output_dir>/export/model.pt2`, which PyTorch runs without the model's code.

    Set `do_export=True` in the arguments to use it. The export happens at the end of training. With
    `load_best_model_at_end`, it exports the best model. Load the file with `torch.export.load(path).module()`.
    `trainer.export_model()` exports without training.

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

"""Loss: how a batch becomes a loss, and how losses are summed until they are logged.

| Module | Subject |
| --- | --- |
| `objective` | Loss and outputs of a batch, with the model's own loss, a criterion or a loss function. |
| `loss_module` | A criterion or loss function that is a module and is trained too. |
| `reachable` | Modules that a loss function uses, but that the run does not train. |
| `signature` | The parameters that a model's `forward` accepts, and which of them are labels. |
| `label_smoothing` | Cross entropy with label smoothing. |
| `item_counts` | The item count of a step, over which a loss is averaged. |
| `loss_window` | Sums of training losses between two logs. |
| `index_errors`, `dtype_errors`, `gradient_errors` | Explanations of torch errors about indices, types and gradients. |
"""

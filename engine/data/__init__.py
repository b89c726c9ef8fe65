"""Data: from a dataset to the batches of each optimizer step, in an order that a resumed run repeats.

| Module | Subject |
| --- | --- |
| `sources`, `unbatched` | The datasets that users pass: tables, files, and datasets of batches. |
| `build` | Dataset -> loader, for map-style and streaming datasets. |
| `loader`, `epoch_progress` | A DataLoader that prefetches one batch and resumes exactly. |
| `stateful`, `prepared` | Loaders of the user: how they resume, and how their batches are divided over ranks. |
| `open_loaders` | The loaders that are being read, for `accelerator.gather_for_metrics`. |
| `samplers`, `length_sampler` | The order of samples, and the batches of each rank. |
| `streaming_shards`, `stream_state` | Streams divided over ranks, and their positions. |
| `feed` | Loader -> the batches of each optimizer step. |
| `plan`, `position` | The length of a run, and the position of a run in the data. |
| `batches` | Functions on tensors in nested dicts, lists and tuples. |
| `collators/`, `workers/` | Samples -> batch, and the worker processes of a loader. |
| `columns/` | Batches from the columns of Arrow tables and tensors. |
| `packing/` | Several samples in one row of a batch. |
"""

"""Data: from a dataset to the batches of optimizer steps, in an order that depends only on seed and epoch.

| Module | Subject |
| --- | --- |
| `build` | Dataset -> loader, for map-style and streaming datasets. |
| `loader`, `epoch_progress` | A DataLoader that prefetches one batch and resumes exactly. |
| `samplers`, `length_sampler` | The order of samples, and their batches per rank. |
| `streaming_shards`, `stream_state` | Streams divided over ranks, and their positions. |
| `feed` | Loader -> the batches of each optimizer step. |
| `plan`, `position` | The length of a run, and the position of a run in the data. |
| `batches` | Functions on nested tensors. |
| `collators/`, `workers/` | Samples -> batch, and the worker processes of a loader. |
"""

"""Batches straight from columns: from Arrow tables and tensors, without a Python object for each sample.

`choosing` decides whether the dataset and the collator of a loader are known. `rows`, `table` and `tensors` stand for
the samples of a batch, which are read only when they are needed. `arrow` views the columns of a table. `padding` makes
the batch that a tokenizer makes.
"""

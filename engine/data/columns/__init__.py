"""Batches that are made from the columns of Arrow tables and tensors, without a Python object for each sample.

`choosing` decides whether the dataset and the collator of a loader are supported. `rows`, `table` and `tensors`
represent the samples of a batch, and read them only when they are needed. `arrow` makes views of the columns of a
table. `padding` makes the same padded batch as a tokenizer.
"""

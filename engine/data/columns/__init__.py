"""Batches that are made from the columns of Arrow tables and tensors, without a Python object for each sample.

`choosing` decides whether the dataset and the collator of a loader are supported. `rows`, `table` and `tensors`
represent the samples of a batch, and read the samples only when a collator needs them. `arrow` makes views of the
columns of a table. `padding` makes the same padded batch as a tokenizer. `lengths` computes the length of each sample.
"""

"""Packing: several samples in one row of a batch, without padding between them."""

from .collator import Packing as Packing

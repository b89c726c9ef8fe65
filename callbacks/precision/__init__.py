"""Callbacks for numeric precision: mixed precision, half-precision weights and evaluation, TF32."""

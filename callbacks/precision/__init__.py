"""Callbacks for numeric precision: mixed precision, half-precision weights, half-precision evaluation, TF32."""

"""Numeric precision: mixed precision, half-precision weights, TF32."""

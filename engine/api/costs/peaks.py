"""The peak speed of known GPUs. Model FLOPs utilization (MFU) is the share of this speed that a model uses."""

from __future__ import annotations

PEAKS: dict[str, tuple[float, float, float]] = {
    "B200": (2250.0, 1100.0, 75.0),
    "H200": (989.4, 494.7, 66.9),
    "H100 PCIe": (756.0, 378.0, 51.2),
    "H100": (989.4, 494.7, 66.9),
    "A100": (312.0, 156.0, 19.5),
    "A10G": (70.0, 35.0, 35.0),
    "A10": (125.0, 62.5, 31.2),
    "A40": (149.7, 74.8, 37.4),
    "L40S": (362.0, 183.0, 91.6),
    "L4": (121.0, 60.0, 30.3),
    "V100": (125.0, 15.7, 15.7),
    "T4": (65.0, 8.1, 8.1),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71.0, 35.6, 35.6),
}
"""Name of a GPU -> peak TFLOPS for dense matrices in 16 bits, in TF32 and in float32, from NVIDIA's data sheets."""


def peak_of(device_name: str, half: bool, tf32: bool) -> float | None:
    """Return the peak speed of a GPU in floating-point operations per second; None for an unknown GPU.

    Args:
        device_name: the name of the GPU, as `torch.cuda.get_device_name` returns it.
        half: whether the model computes in bfloat16 or float16.
        tf32: whether matrix products of float32 use TF32.
    """
    words = device_name.replace("-", " ").split()
    for name, (of_half, of_tf32, of_float32) in PEAKS.items():
        if all(word in words for word in name.split()):
            return 1e12 * (of_half if half else of_tf32 if tf32 else of_float32)
    return None

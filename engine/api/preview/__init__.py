"""Preview: the logs, evaluations, saves and stops of a run, computed without training.

A preview runs the real loop and the real callbacks that request this work. Model, data, disk and clock are virtual.
"""

"""Preview: run the real loop and the real callbacks that decide, on a virtual clock and without model and data."""

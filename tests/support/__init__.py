"""Models, data, trainers and fakes that several tests share. pytest and `support.processes` make it importable."""

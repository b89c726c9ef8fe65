"""The report of runs: what their output folders hold, as data, as one HTML file, and as images."""

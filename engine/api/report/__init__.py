"""The report of runs: the contents of their output folders as data, as one HTML file and as images."""

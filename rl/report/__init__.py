"""The report of a run: plots and one self-contained HTML file, made from the run folder alone."""

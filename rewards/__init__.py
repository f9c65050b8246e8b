"""The reward graph: nodes named in YAML turn audio into named values, one expression makes the total."""

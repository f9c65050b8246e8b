"""Command-line entry points. Heavy imports wait until the configuration is known to be right."""

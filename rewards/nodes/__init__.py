"""One reward node per file; the file's name is its type in the configuration."""

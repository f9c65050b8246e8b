"""A trained adapter as a checkpoint of its own, in the published layout."""

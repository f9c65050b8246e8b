"""How the nodes of a graph run: which clips they see together, on which workers, and until when."""

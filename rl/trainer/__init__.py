"""The learner: what a step's rewards do to the adapter."""

"""Auralign's policy, codec, learner and command line."""

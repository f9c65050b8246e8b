"""Loaders for reward models that several nodes share or that need converting."""

"""Engines that sample a Dual-AR policy, and the store that keeps what they sampled."""

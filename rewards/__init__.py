"""Scoring clips: reward nodes, and the graph that runs them and forms the total. See docs/rewards.md."""

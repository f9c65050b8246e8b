"""Asking OpenAI-compatible servers: requests, retries, rates, a cache of answers. See docs/judges.md."""

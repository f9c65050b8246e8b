"""Why a question to an endpoint got no answer."""

from __future__ import annotations


class AskError(Exception):
    """Asking again would not help, or has been tried often enough."""


class TryAgain(AskError):
    """A fault that may pass: a connection, a time-out, an overloaded server, a body that isn't JSON."""

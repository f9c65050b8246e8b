"""Errors a user can act on: each message is one line that names the key or file and the remedy."""


class AuralignError(Exception):
    """Base of every error that the command line prints as one line, without a traceback."""


class ConfigError(AuralignError):
    """A configuration key, value or file is wrong."""


class CheckpointError(AuralignError):
    """A policy or codec checkpoint can't be used as it is."""


class PromptError(AuralignError):
    """A prompt record can't be turned into a policy input."""


class RunFolderError(AuralignError):
    """A file of a run folder is missing, damaged, or of another version."""


class ClusterError(AuralignError):
    """The Ray cluster can't be joined, has no room, or loses its workers."""


class LearnerLostError(ClusterError):
    """Another learner process has ended: with an error of its own, or killed."""


class StaleRolloutError(AuralignError):
    """Rollouts of another policy version reached a learner that isn't told to correct for it."""


class AuditError(AuralignError):
    """What is to be audited can't be read, or an audit can't be made of it."""


class EvalError(AuralignError):
    """A benchmark's data or audio can't be read, or doesn't fit together."""


class RewardError(AuralignError):
    """Too many clips of a step have no reward to go on training."""

"""What can go wrong, by whose fault.

Every message is one sentence of the form *where: what we got, what we needed; what to do*.
"""


class HpctrainError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class ConfigError(HpctrainError, ValueError):
    """A setting is missing, unknown or out of range."""

    exit_code = 2


class DataError(HpctrainError, ValueError):
    """A data file is missing, damaged or not of the expected form."""

    exit_code = 2


class ShapeError(HpctrainError, ValueError):
    """Array shapes or dtypes do not fit the operation."""


class RangeError(ShapeError):
    """An index is beyond the array that it points into, such as a label beyond the classes.

    Parameters
    ----------
    message : str
    index : int, optional
        The index, for whoever can tell where it comes from.
    """

    exit_code = 2

    def __init__(self, message: str = "", index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class CheckpointError(HpctrainError, RuntimeError):
    """A checkpoint is incomplete, damaged or belongs to another run."""

    exit_code = 2


class CommError(HpctrainError, RuntimeError):
    """The ranks of a group disagree, or a peer is gone."""


class LostRankError(CommError):
    """A rank of the run has died, as MPI says."""

    exit_code = 137  # a shell's for a process that was killed


class EngineError(HpctrainError, RuntimeError):
    """The engine was used wrongly, or a task that it ran has failed."""


class NumericError(HpctrainError, ArithmeticError):
    """Numbers stopped being finite."""

    exit_code = 86

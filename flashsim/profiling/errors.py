"""What can be wrong with a kernel that is counted."""


class ProfilingError(Exception):
    """A kernel cannot be counted: the message says why, and at which line."""


class OutsideArrays(ProfilingError):
    """A kernel reads or writes memory that belongs to no array."""

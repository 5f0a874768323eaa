"""The ways in which the lab fails."""


class LabError(Exception):
    """What failed, on what object, and the remedy: printed as it is, without a trace."""


class Unavailable(LabError):
    """Something that the lab fetches cannot be had on this machine."""

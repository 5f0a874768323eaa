"""The one way in which the lab fails."""


class LabError(Exception):
    """What failed, on what object, and the remedy: printed as it is, without a trace."""

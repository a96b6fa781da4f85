"""The one error of this package that users see."""


class CheckpointError(Exception):
    """What was asked for cannot be made: says what, its value, and what is allowed."""


def require(condition, what, value, allowed):
    """Raises CheckpointError unless the condition holds."""
    if not condition:
        raise CheckpointError(f"{what} is {value!r}; allowed: {allowed}")


def require_multiple(config, key, divisor, why):
    require(config[key] % divisor == 0, key, config[key], f"a multiple of {divisor} ({why})")

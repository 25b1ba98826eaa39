"""Write readable numbers: bytes, seconds and ratios with their units. A missing value is written as a dash."""

from fedstrata.tasks import Metric

NO_VALUE = "–"
SPACE = "\u00a0"  # a no-break space between a number and its unit
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def byte_unit(largest: float) -> tuple[float, str]:
    """Return the decimal unit of bytes that suits `largest` best: the number of bytes in the unit, and the name of the
    unit.
    """
    power = 0
    # From 999.5 on, a number would be rounded to 1000 of its unit.
    while largest >= 999.5 * 1000**power and power < len(BYTE_UNITS) - 1:
        power += 1
    return float(1000**power), BYTE_UNITS[power]


def human_bytes(count: int) -> str:
    """Return a number of bytes with three digits and a decimal unit: 512 B, 12.3 kB, 1.20 GB."""
    factor, unit = byte_unit(count)
    return f"{three_digits(count / factor) if factor > 1 else count}{SPACE}{unit}"


def human_seconds(seconds: float | None) -> str:
    """Return a duration as text, such as 250 ms, 12.3 s, 3 min 05 s or 2 h 03 min."""
    if seconds is None:
        return NO_VALUE
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{SPACE}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min{SPACE}{rest:02d}{SPACE}s"
    return f"{minutes // 60}{SPACE}h{SPACE}{minutes % 60:02d}{SPACE}min"


def percent(ratio: float | None) -> str:
    """Return a ratio as a percentage, such as 91.0 %."""
    return NO_VALUE if ratio is None else f"{100 * ratio:.1f}{SPACE}%"


def decimal(value: float | None) -> str:
    """Return a number without a unit, with three decimals."""
    return NO_VALUE if value is None else f"{value:.3f}"


def measured(value: float | None, metric: Metric) -> str:
    """Return a metric's value as text: a ratio as a percentage, and any other value with four significant digits."""
    if metric.is_percent:
        return percent(value)
    return NO_VALUE if value is None else f"{value:.4g}"


def grouped(count: int) -> str:
    """Return a count with a space between thousands: 12 300."""
    return f"{count:,}".replace(",", "\u202f")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 device, 2 devices."""
    return f"{grouped(count)}{SPACE}{noun}{'' if count == 1 else 's'}"


def three_digits(value: float) -> str:
    """Return a number with three significant digits: 1.23, 12.3, 123."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"

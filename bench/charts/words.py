"""Formats numbers for tables, charts and the terminal."""

import math

ABSENT = "–"


def size_name(size):
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def whole(value):
    return ABSENT if value is None else f"{value:,.0f}"


def decimal(value):
    """About three digits."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def rounded(value):
    """Three significant digits."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{round(value, digits):,.0f}" if value >= 100 else decimal(value)


def hundredths(value):
    return f"{value:.2f}"


def mebibytes(value):
    return f"{value / 2**20:.1f}"


def percent(value):
    return f"{value * 100:.0f} %"

"""Converts values to positions on a chart."""

import math

TICKS = 5


class Axis:
    """An axis from `start` to `end`, in pixels: linear, or logarithmic for a wide range of values."""

    def __init__(self, values, is_log, start, end, ticks=TICKS):
        self.is_log, self.start, self.end = is_log, start, end
        values = [value for value in values if value and value > 0] or [1]
        if is_log:
            low = math.floor(math.log10(min(values)))
            high = max(math.ceil(math.log10(max(values))), low + 1)
            self.low, self.high = 10**low, 10**high
        else:
            self.step = nice(max(values) / ticks)
            self.low, self.high = 0, self.step * math.ceil(max(values) / self.step)

    def at(self, value):
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = max(0, value) / self.high
        return self.start + (self.end - self.start) * share

    def ticks(self):
        if self.is_log:
            decades = round(math.log10(self.high / self.low))
            return [self.low * 10**decade for decade in range(decades + 1)]
        count = round(self.high / self.step)
        return [self.step * number for number in range(count + 1)]


def nice(step):
    """The next larger of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(step))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= step * 0.999)

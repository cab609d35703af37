"""Charts as SVG: text, rectangles and lines, readable on a light and on a dark page.

The browser picks the colours by the reader's colour scheme, so that one file serves both. No library
is needed.

| module | what it is |
|---|---|
| `bars` | bars and ranges side by side: the comparison with other servers |
| `curves` | line charts by size, stacked: the growth from a thousand to a million |
| `picture`, `axis` | shared by both: the frame of a chart and its colours; the mapping of values to pixels |
| `words` | numbers as they are shown |
"""

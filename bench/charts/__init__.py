"""Charts as SVG: text, rectangles and lines, readable on a light and on a dark page.

A browser that shows the picture asks its reader's system for the colours, so that one file does for
both. Nothing is drawn with a library.

| module | what it is |
|---|---|
| `bars` | bars and ranges side by side: the comparison with other servers |
| `curves` | measures by size, one below the other: the growth from a thousand to a million |
| `picture`, `axis` | what both are drawn in: the page of a chart and its colours; from values to places |
| `words` | numbers as they are shown |
"""

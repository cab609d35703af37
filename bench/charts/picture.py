"""The frame of every chart: page, heading and colours."""

from html import escape

WIDTH = 860
TOP = 58

STYLE = """
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #3d444d }
.title { font-size: 16px; font-weight: 600; fill: #1f2328 }
.heading { font-weight: 600; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.whisker { stroke: #1f2328; stroke-width: 1.2; opacity: .55 }
.a { fill: #9aa7b5 } .b { fill: #c3ccd5 }
.own.a { fill: #0b6e4f } .own.b { fill: #4fb286 }
@media (prefers-color-scheme: dark) {
  text { fill: #c3ccd6 } .title, .heading { fill: #f0f6fc } .small { fill: #9198a1 }
  .grid { stroke: #3d444d } .whisker { stroke: #f0f6fc }
  .a { fill: #6b7683 } .b { fill: #474f59 }
  .own.a { fill: #3fb68b } .own.b { fill: #1f7a5a }
}
"""


def picture(title, subtitle, parts, height, style=STYLE):
    head = [text(0, 18, title, "title"), text(0, 37, subtitle, "small")]
    size = f'viewBox="-8 -4 {WIDTH + 16} {height:.0f}" width="{WIDTH + 16}" height="{height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    described = f"<title>{escape(title)}</title>\n<style>{style}</style>"
    return "\n".join([opening, described, *head, *parts, "</svg>", ""])


def text(x, y, words, kind, anchor="start"):
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'

"""Charts as SVG text: lines over axes, and bars. Colours and type are the page's (report.css)."""

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 24, 40
TICKS = 5  # at least about so many on an axis
ROW = 19  # between words on uprights: what they need in the narrow page's larger type
BAR_HEIGHT, BAR_GAP = 22, 9
BAR_LEFT, BAR_RIGHT = 150, 140  # names, and what stands behind a bar

Points = Sequence[tuple[float, float]]


def ticks(high: float) -> list[float]:
    """Round numbers from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(high / TICKS))
    step = next(step * k for k in (1, 2, 5, 10) if high / (step * k) <= TICKS + 1)
    count = math.ceil(high / step - 1e-9)
    return [round(step * n, 10) for n in range(count + 1)]


class Plot:
    """Lines and marks over two axes that begin at 0."""

    def __init__(
        self, xs: Sequence[float], ys: Sequence[float], *, x_label: str, title: str,
        x_text: Callable[[float], str] = "{:g}".format, y_text: Callable[[float], str] = "{:g}".format,
        even: bool = False,
    ) -> None:  # fmt: skip
        """Draw the axes.

        Args:
            xs: ticks of the x axis, ascending; with `even` they stand at equal distances.
            ys: ticks of the y axis, ascending from 0.
            x_label: below the axis.
            title: for those who can't see it.
            x_text: how a tick is written.
            y_text: the same of y.
            even: for counts that double; points must stand at ticks then.
        """
        self._xs, self._ys, self._even = list(xs), list(ys), even
        self._parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        ]
        base = HEIGHT - BOTTOM
        for y in ys:
            at = self.y(y)
            self._parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
            )
            self._text(LEFT - 8, at + 4, y_text(y), "end")
        for x in xs:
            self._text(self.x(x), base + 17, x_text(x), "middle")
        self._text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle", "axis")

    def x(self, value: float) -> float:
        """Where an x lies."""
        if self._even:
            cells = len(self._xs)
            share = (self._xs.index(value) + 0.5) / cells
        else:
            share = value / self._xs[-1]
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Where a y lies."""
        high = self._ys[-1]
        return round(HEIGHT - BOTTOM - value / high * (HEIGHT - TOP - BOTTOM), 1)

    def line(self, points: Points, kind: str, title: str = "") -> None:
        """A line through points; `kind`: CSS classes."""
        path = "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)
        self._parts.append(f'<path class="line {kind}" d="{path}">{_title(title)}</path>')

    def dot(self, x: float, y: float, kind: str, title: str = "") -> None:
        """A point."""
        self._parts.append(
            f'<circle class="dot {kind}" cx="{self.x(x)}" cy="{self.y(y)}" r="5">{_title(title)}</circle>'
        )

    def upright(self, x: float, text: str, kind: str, row: int = 0) -> None:
        """A vertical line at x, with words beside its foot; `row`: so many lines higher."""
        at = self.x(x)
        self._parts.append(
            f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        right = at > WIDTH * 0.7
        y = HEIGHT - BOTTOM - 7 - ROW * row
        self._text(at + (-5 if right else 5), y, text, "end" if right else "start", "note")

    def level(self, y: float, text: str, kind: str) -> None:
        """A horizontal line at y, with a word above its end."""
        at = self.y(y)
        self._parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
        )
        self._text(WIDTH - RIGHT, at - 6, text, "end", "note")

    def svg(self) -> str:
        """The chart."""
        return "".join([*self._parts, "</svg>"])

    def _text(self, x: float, y: float, text: str, anchor: str, kind: str = "tick") -> None:
        self._parts.append(_text(x, y, text, anchor, kind))


def bars(
    rows: Sequence[tuple[str, float, str, str]], *, title: str, mark: float = 0.0, mark_text: str = ""
) -> str:  # fmt: skip
    """Horizontal bars from 0.

    Args:
        rows: (name, value, CSS classes, what stands behind the bar).
        title: for those who can't see it.
        mark: a line across all of them; 0: none.
        mark_text: what it is.
    """
    high = max([mark, *(value for _, value, _, _ in rows)]) or 1.0
    top = 18 if mark else 2
    height = top + len(rows) * (BAR_HEIGHT + BAR_GAP)
    scale = (WIDTH - BAR_LEFT - BAR_RIGHT) / high
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for number, (name, value, kind, text) in enumerate(rows):
        y = top + number * (BAR_HEIGHT + BAR_GAP)
        wide = round(max(1.0, value * scale), 1)
        parts.append(_text(BAR_LEFT - 10, y + BAR_HEIGHT - 6, name, "end", "name"))
        parts.append(
            f'<rect class="bar {kind}" x="{BAR_LEFT}" y="{y}" width="{wide}" height="{BAR_HEIGHT}" rx="3"/>'
        )
        parts.append(_text(BAR_LEFT + wide + 7, y + BAR_HEIGHT - 6, text, "start", "value"))
    if mark:
        at = round(BAR_LEFT + mark * scale, 1)
        parts.append(f'<line class="bound" x1="{at}" x2="{at}" y1="{top - 4}" y2="{height - 4}"/>')
        parts.append(_text(at, 11, mark_text, "middle", "note"))
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""

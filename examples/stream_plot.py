#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what examples/stream.py has sampled: a process's memory over time, whole and streamed.

    python3 examples/stream_plot.py WHOLE STREAMED >streaming.svg

These are files of --sample. What the streamed one did when is named below the axis."""

import sys

LEFT, TOP, WIDE, HIGH, POINTS = 56, 26, 560, 230, 240
STYLE = {"whole": "#c2410c", "streamed": "#1d4ed8"}


def read(path):
    """Seconds, megabytes, and what was done."""
    with open(path, encoding="ascii") as file:
        rows = [line.split() for line in file if line.endswith("\n")]
    return [(float(row[0]), int(row[1]) / 1e6, " ".join(row[2:])) for row in rows]


def thinned(rows, end):
    """The most of each stretch of time."""
    most = {}
    for second, size, _ in rows:
        at = int(second / end * POINTS)
        most[at] = max(most.get(at, 0), size)
    return [(at / POINTS * end, size) for at, size in sorted(most.items())]


def ticks(end):
    unit = 10 ** (len(str(int(end))) - 1)
    step = next(s for s in (unit / 5, unit / 2, unit, 2 * unit, 5 * unit) if end / s <= 7)
    return [i * step for i in range(int(end / step) + 1)]


def text(x, y, what, anchor="middle", more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{what}</text>'


def draw(curves):
    end = max(rows[-1][0] for rows in curves.values())
    top = 1.1 * max(size for rows in curves.values() for _, size, _ in rows)

    def at(second, size):
        return LEFT + WIDE * second / end, TOP + HIGH * (1 - max(size, 0) / top)

    bottom = TOP + HIGH
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 20} '
             f'{bottom + 62}" font-family="sans-serif" font-size="12" fill="#222">',
             '<rect width="100%" height="100%" fill="white"/>',
             text(LEFT, 16, "memory of rank 0 beyond what it had at first, MB", "start")]
    for size in ticks(top):
        y = at(0, size)[1]
        lines += [f'<path d="M{LEFT} {y:.1f}h{WIDE}" stroke="#ddd"/>',
                  text(LEFT - 6, y + 4, f"{size:.0f}", "end")]
    for second in ticks(end):
        lines.append(text(at(second, 0)[0], bottom + 16, f"{second:g}"))
    lines.append(text(LEFT + WIDE, bottom + 52, "seconds", "end"))
    for place, (name, rows) in enumerate(curves.items()):
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in thinned(rows, end))
        color = STYLE[name]
        lines += [f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>',
                  text(LEFT + 90 * place, bottom + 52, name, "start",
                       f' fill="{color}" font-weight="bold"')]
    shown = []  # where, and what: those that begin near to one another together
    before, blue = None, STYLE["streamed"]
    for second, _, phase in curves["streamed"]:
        x = at(second, 0)[0]
        if phase == before:
            continue
        before = phase
        lines.append(f'<path d="M{x:.1f} {bottom}v-6" stroke="{blue}"/>')
        if shown and x - shown[-1][0] < 44:
            shown[-1][1] += f", {phase}"
        else:
            shown.append([x, phase])
    for x, phases in shown:
        lines.append(text(x, bottom + 34, phases, "start", f' fill="{blue}" font-size="11"'))
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    print(draw({"whole": read(sys.argv[1]), "streamed": read(sys.argv[2])}))

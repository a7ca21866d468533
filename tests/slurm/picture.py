#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""picture.py STEPS REPORT: draws a job that has lost nodes, to standard output: its loss over time,
what was restored, and when nodes were lost. STEPS has lines "SECONDS step NUMBER LOSS", "SECONDS
from NUMBER" and "SECONDS lost WHAT"; REPORT is that of the last attempt."""

import json
import sys

LEFT, TOP, WIDE, HIGH = 56, 30, 560, 220
COLOURS = ["#1d4ed8", "#c2410c", "#15803d", "#7e22ce"]


def read(path):
    """(seconds, loss, attempt) of steps, (seconds, number, attempt) of what was restored, and
    (seconds, what) of losses; seconds from the first step on."""
    steps, restored, lost, attempt, first = [], [], [], 0, None
    with open(path, encoding="ascii") as file:
        for line in file:
            second, what, *rest = line.split()
            if what == "from":
                attempt += 1
            first = float(second) if first is None else first
            at = float(second) - first
            if what == "step":
                steps.append((at, float.fromhex(rest[1]), attempt))
            elif what == "from":
                restored.append((at, int(rest[0]), attempt))
            elif what == "lost":
                lost.append((at, " ".join(rest)))
    return steps, restored, lost


def text(x, y, what, anchor="middle", colour="#222"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{what}</text>'


def draw(steps, restored, lost, protections):
    end, top = steps[-1][0] or 1, 1.05 * max(loss for _, loss, _ in steps)
    bottom = TOP + HIGH

    def x(second):
        return LEFT + WIDE * second / end

    def beside(second, y, what, colour):
        left = x(second) < LEFT + WIDE / 2
        return text(x(second) + (4 if left else -4), y, what, "start" if left else "end", colour)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 20} '
             f'{bottom + 60}" font-family="sans-serif" font-size="12" fill="#222">',
             '<rect width="100%" height="100%" fill="white"/>',
             text(LEFT, 16, "loss after each step, all of which were protected", "start"),
             f'<path d="M{LEFT} {TOP}V{bottom}H{LEFT + WIDE}" stroke="#999" fill="none"/>',
             text(LEFT - 6, TOP + 8, f"{top / 1.05:.2g}", "end"),
             text(LEFT - 6, bottom + 4, "0", "end")]
    for second in range(0, int(end) + 1, max(1, int(end) // 10)):
        lines.append(text(x(second), bottom + 16, second))
    for second, what in lost:
        lines += [f'<path d="M{x(second):.1f} {TOP}V{bottom}" stroke="#b91c1c" '
                  'stroke-dasharray="4 3"/>',
                  beside(second, TOP + 10, what, "#b91c1c")]
    for second, number, attempt in restored:
        lines += [f'<path d="M{x(second):.1f} {TOP + 20}V{bottom}" '
                  f'stroke="{COLOURS[attempt % len(COLOURS)]}" stroke-dasharray="1 3"/>',
                  beside(second, TOP + 26 + 14 * attempt, f"goes on from step {number}",
                         COLOURS[attempt % len(COLOURS)])]
    for second, loss, attempt in steps:
        lines.append(f'<circle cx="{x(second):.1f}" cy="{bottom - HIGH * loss / top:.1f}" r="2.5" '
                     f'fill="{COLOURS[attempt % len(COLOURS)]}"/>')
    lines += [text(LEFT, bottom + 36, f"The report of the last attempt: {protections['saved']} "
                   f"steps protected, {protections['failed']} failed.", "start"),
              text(LEFT + WIDE, bottom + 36, "seconds", "end"), "</svg>"]
    return "\n".join(lines)


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        ranks = json.load(file)["ranks"]
    print(draw(*read(sys.argv[1]), ranks[0]["protections"]))


if __name__ == "__main__":
    main()

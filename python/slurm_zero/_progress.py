# SPDX-License-Identifier: Apache-2.0
"""How far a load has come, on standard error."""

import sys


def bar(rank):
    """What zero.load calls with (parameter, bytes done, bytes of all): a bar on rank 0, by tqdm if it is
    installed, else a line for each tenth. It is of what rank 0 keeps; the other ranks have as much."""
    if rank:
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return _lines()
    shown = None

    def show(param, done, total):
        nonlocal shown
        if shown is None:
            shown = tqdm(total=total, unit="B", unit_scale=True, desc="load")
        shown.update(done - shown.n)
        if done == total:
            shown.close()

    return show


def _lines():
    tenths = 0

    def show(param, done, total):
        nonlocal tenths
        if total and done * 10 // total > tenths:
            tenths = done * 10 // total
            print(f"load: {tenths}0 %", file=sys.stderr, flush=True)

    return show

# SPDX-License-Identifier: Apache-2.0
"""Ranks whose models differ are told where."""

import hashlib

from . import _zero

_BYTES = 256


def require_same(lines):
    """Raises an error on all ranks that names the first of the lines, one for each parameter, that is not
    the same on all. All ranks call it."""
    lines = [*lines, "no parameter more"]

    def differ(count):
        """Whether the first `count` lines do."""
        text = "\n".join(lines[:count])
        return len(set(_exchange(hashlib.sha256(text.encode()).digest()))) > 1

    least = min(int(count) for count in _exchange(b"%16d" % len(lines)))
    if not differ(len(lines)):
        return
    same, other = 0, least  # this many are the same, and this many are not
    while other - same > 1:
        middle = (same + other) // 2
        same, other = (same, middle) if differ(middle) else (middle, other)
    said = [text.decode(errors="replace").strip() for text in _exchange(lines[same].encode()[:_BYTES].ljust(_BYTES))]
    rank = next((r for r, text in enumerate(said) if text != said[0]), 0)
    raise _zero.Error(f"ranks have different models: rank 0 has {said[0]}, rank {rank} has {said[rank]}")


def _exchange(mine):
    said = _zero.exchange(mine)
    return [said[i : i + len(mine)] for i in range(0, len(said), len(mine))]

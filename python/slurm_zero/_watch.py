# SPDX-License-Identifier: Apache-2.0
"""The job of a program that moves its tensors by itself: its ranks meet, and are watched until they
have ended. If one is lost, the others write where they are."""

import atexit
import contextlib
import datetime
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

from . import _zero

_LOSS = signal.SIGRTMAX - 2  # by which nobody tells a program anything
_stacks = os.memfd_create("stacks")  # which the handler of _LOSS writes, for the C side to read
_joined = False
_pid = os.getpid()  # a forked child, such as a DataLoader's worker, is no rank


def join(timeout: datetime.timedelta) -> tuple[int, int, int, int]:
    """Opens the job, unless one is open, and returns (rank, world, local rank, local world). Ranks
    may come as late as `timeout`. All ranks call it."""
    global _joined
    if not _zero.is_open():
        # These are of the job that shards.
        names = {"ZERO_BACKEND", "ZERO_REPORT"} & os.environ.keys()
        hidden = {name: os.environ.pop(name) for name in names}
        seconds = min(86400, max(1, int(timeout.total_seconds())))
        try:
            _zero.open(f"backend=none report= open_seconds={seconds}", 0)
        finally:
            os.environ.update(hidden)
        _joined = True
        show_stacks()
        os._exit = _exit
    return _zero.place()


def _exit(status: int, exit_at_once: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """A program that ends so with status 0 has ended well, which nobody else would know."""
    if status == 0 and _joined and os.getpid() == _pid:
        _zero.finish()
        _zero.close()  # which waits for nobody
    exit_at_once(status)


def leave() -> None:
    """Closes the job of join, in whose place another one comes. All ranks call it."""
    global _joined
    if _joined:
        _joined = False
        _zero.close()


def show_stacks() -> None:
    """If a rank is lost, this one writes the stacks of its threads before it is ended."""
    faulthandler.register(_LOSS, file=_stacks, all_threads=True)
    _zero.on_loss(_LOSS, _stacks)


def _finish() -> None:
    if _zero.is_open() and os.getpid() == _pid:
        _zero.finish()


def watch_end() -> None:
    """The job that sharded has been closed: what is left of the process is watched. All ranks call
    it."""
    with contextlib.suppress(_zero.Error):
        join(datetime.timedelta(seconds=10))
        _finish()
        _zero.on_loss(0, -1)


def _hide_stacks() -> None:
    """The interpreter is about to be gone."""
    if _zero.is_open():
        _zero.on_loss(0, -1)


# This one is called before the interpreter waits for threads.
threading._register_atexit(_finish)
atexit.register(_hide_stacks)

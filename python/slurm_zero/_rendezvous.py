# SPDX-License-Identifier: Apache-2.0
"""The store by which the ranks of torch.distributed find each other: on a port that the kernel
chooses, at addresses instead of names, and without a variable of the user's."""

import datetime
import os
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch.distributed as dist

from . import _start, _watch, _zero

_BYTES = 1024
_TIMEOUT = datetime.timedelta(minutes=30)


def replace_env(module: ModuleType) -> None:
    """init_process_group() goes through the launcher, unless the program has a port of its own, or
    ranks that are not the launcher's. init_method="pmix://" goes through it in any case."""
    handlers = module._rendezvous_handlers
    stock = handlers["env"]

    def env(url: str, timeout: datetime.timedelta = _TIMEOUT, **kwargs: Any) -> Iterator[tuple]:
        if not _is_launched(url):
            return stock(url, timeout=timeout, **kwargs)
        if _start.settings["tasks"] == "1":
            return rendezvous((0, 1, 0, 1), timeout)
        try:
            place = _watch.join(timeout)
        except _zero.Error as error:
            _start.tell(f"torch.distributed goes by MASTER_ADDR and MASTER_PORT: {error}")
            return stock(url, timeout=timeout, **kwargs)
        return rendezvous(place, timeout)

    handlers["env"] = env
    handlers["pmix"] = lambda url, timeout=_TIMEOUT, **_: rendezvous(_watch.join(timeout), timeout)


def _is_launched(url: str) -> bool:
    """Whether all ranks of the launcher, and no others, are to meet at the launcher's port."""
    query = urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query)
    said = {**os.environ, **{n.upper(): v for n, v in query}}
    port = _start.settings["master"].rpartition(":")[2]
    return (said.get("RANK"), said.get("WORLD_SIZE"), said.get("MASTER_PORT")) == (
        os.environ["PMIX_RANK"], _start.settings["tasks"], port
    )


def rendezvous(place: tuple, timeout: datetime.timedelta) -> Iterator[tuple]:
    rank, world, _, local_world = place
    yield make_store(rank, world, local_world == world, _zero.exchange, timeout), rank, world
    raise RuntimeError("ranks cannot meet again through the launcher")


def make_store(rank: int, world: int, one_node: bool, exchange: Callable[[bytes], bytes],
               timeout: datetime.timedelta = datetime.timedelta(minutes=5)) -> dist.Store:
    """Returns the store of all ranks, on all of them or on none, and sets GLOO_SOCKET_IFNAME
    and, where there are several nodes, NCCL_SOCKET_IFNAME, unless they are set.
    `exchange` takes bytes and returns those of all ranks, one after the other; all ranks pass the
    same number of bytes. `one_node` says that all ranks are on one node."""
    if world == 1:
        return dist.HashStore()
    own = [("lo", "127.0.0.1")]
    if not one_node:  # without those of one link alone, which torch does not take
        own = [pair for pair in _zero.addresses() if "%" not in pair[1]]
    store, said = None, []
    try:
        if rank == 0:
            # It listens at all addresses; this one is how it reaches itself.
            store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False,
                                  timeout=timeout)
            said = [str(store.port)] + [address for _, address in own]
    except Exception as error:
        said = _fault(rank, error)
    (port, *addresses), *_ = allgather_words(exchange, said)
    said = []
    try:
        if rank:
            said = connect(addresses, int(port))
            store = dist.TCPStore(said[0], int(port), world, is_master=False,
                                  wait_for_workers=False, timeout=timeout)
    except Exception as error:
        said = _fault(rank, error)
    reached = allgather_words(exchange, said)[1:]
    # Ranks on the node of rank 0 have reached it at its first address. Other nodes may use another.
    afar = [pair for pair in reached if pair[0] != pair[1]] or reached
    used, local = reached[rank - 1] if rank else afar[0]
    address = afar[0][0] if rank == 0 or used == local else local
    for interface, at in own:
        if at == address:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if not one_node:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    return store


def _fault(rank: int, error: Exception) -> list[str]:
    sentence = f"rank {rank} on {socket.gethostname()}: {error}"
    return ["!", *sentence.split()]


def allgather_words(exchange: Callable[[bytes], bytes], words: list[str]) -> list[list[str]]:
    """Gives all ranks the words of all; an error of the lowest rank that says one."""
    text = " ".join(words).encode()[:_BYTES].ljust(_BYTES)
    every = exchange(text)
    parts = [every[i : i + _BYTES] for i in range(0, len(every), _BYTES)]
    said = [part.decode(errors="replace").split() for part in parts]
    for words in said:
        if words[:1] == ["!"]:
            raise _zero.Error("torch.distributed cannot start: " + " ".join(words[1:]))
    return said


def connect(addresses: list[str], port: int) -> list[str]:
    """The first address at which rank 0 answers, and this rank's own address on the way to it."""
    why = "it has no address"
    for seconds in (1, 5, 20):
        for address in addresses:
            try:
                with socket.create_connection((address, port), seconds) as way:
                    return [address, way.getsockname()[0]]
            except OSError as error:
                why = f"{address} port {port}: {error.strerror or error}"
    raise OSError(f"rank 0 cannot be reached at {', '.join(addresses)}; the last: {why}")

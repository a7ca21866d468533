# SPDX-License-Identifier: Apache-2.0
"""What the programs beside PyTorch's own ways share: each side runs in processes of its own,
started alike, in turns with the others, and its medians become rows of the bench's record."""
import os
import socket
import statistics
import subprocess
import sys

RANKS, ROUNDS = 2, 3


def rendezvous():
    """Says to torch's own ways where this rank is."""
    rank = os.environ["PMIX_RANK"]
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(RANKS))


class Peers:
    """The ranks of this program: zerorun starts them with a side's name and more arguments, and
    rank 0 prints a line of "figures" and numbers."""

    def __init__(self, subject, zerorun, record):
        self.subject, self.zerorun, self.record = subject, zerorun, record

    def run(self, *arguments, ranks=RANKS):
        launcher = [self.zerorun, "-n", str(ranks)] if ranks > 1 else []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
        out = subprocess.run([*launcher, sys.executable, os.path.abspath(sys.argv[0]), *arguments],
                             env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr)
        line = next(line for line in out.stdout.splitlines() if line.startswith("figures "))
        return [float(word) for word in line.split()[1:]]

    def in_turns(self, sides, *arguments, optional=()):
        """The median of each figure, by side. A side that is optional is left out if it fails."""
        runs = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side in list(runs):
                try:
                    runs[side].append(self.run(side, *arguments))
                except RuntimeError as error:
                    if side not in optional:
                        raise
                    print(f"bench: no row beside {side}: {str(error)[-300:]}", file=sys.stderr)
                    del runs[side]
        return {side: [statistics.median(column) for column in zip(*figures)]
                for side, figures in runs.items()}

    def row(self, what, figure, unit, ours, bare, inside, beside, ranks=RANKS):
        with open(self.record, "a", encoding="ascii") as file:
            file.write(f"row\t{self.subject}\t{what}\t{ranks}\t{figure:.6g}\t{unit}\t{ours:.6g}\t"
                       f"{bare:.6g}\t{inside}\t{beside}\n")

    def ratio(self, what, ours, theirs, unit, beside):
        self.row(what, ours / theirs, "x", ours, theirs, unit, beside)

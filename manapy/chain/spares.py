"""Spare nodes of a chain of Slurm jobs: each allocation has more nodes than the program needs. If one of them is lost,
the script runs again on the others, in the same allocation.

Invariants
 1. The script sees an allocation with as many nodes and tasks as it has asked for.
 2. A node is not used again if Slurm has removed it from the allocation, if Slurm says that it is not healthy, or if it
    is the cause of a hang. A node on which a rank has died is used again if the others are too few, because the program
    may be at fault.

Facts that this module relies on (sbatch(1), srun(1); tried with Slurm 22.05, MPICH 5.0.2 and Open MPI 4.1.4):
- If a job with --no-kill loses a node, Slurm removes the node from the job and ends the steps on it, but not the job.
  The node does not become part of the job again if it comes back. A requeued job gets all of its nodes again.
- If it is the first node, on which the script runs, the job lasts until its limit (sentinel.py).
- A step that had ranks on the lost node may keep the processors of its other nodes for minutes after their processes
  have ended. Only steps with --overlap (SLURM_OVERLAP) start meanwhile.
- srun takes the place of each task from the file SLURM_HOSTFILE, unless it is called with --nodelist.
- mpiexec of Hydra passes --nodelist to srun only if it has been given the hosts (HYDRA_HOST_FILE). mpirun of Open MPI
  does not pass it; it adds OMPI_MCA_plm_slurm_args, and starts nothing by srun on its own node.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..core.errors import UsageError, why
from .attempt import Outcome
from .record import Chain
from .slurm import Allocation, SlurmError, hostnames, is_unwell, start_on, words

# options of sbatch: those that count nodes and tasks, and totals that cannot be divided among other nodes
COUNTS = {"-N": "nodes", "-n": "ntasks"}
TOTALS = {"--gpus": "--gpus-per-node", "-G": "--gpus-per-node"}


class Shape(NamedTuple):
    """The nodes and tasks that the script asks for: nodes, tasks on all of them together, and at most ``each`` tasks on
    a node (0: it does not say); and ``more`` nodes as spares."""

    nodes: int
    tasks: int
    more: int
    each: int = 0

    @property
    def per_node(self) -> list[int]:
        """The number of tasks on each node."""
        return [self.tasks // self.nodes + (i < self.tasks % self.nodes) for i in range(self.nodes)]

    def options(self) -> list[str]:
        """The options of sbatch that ask for the spares, too. They come after the user's."""
        most, whole = self.per_node[0], self.nodes + self.more
        return ["--no-kill", f"--nodes={whole}", f"--ntasks={most * whole}", f"--ntasks-per-node={most}"]


def shape(header: Sequence[str], options: Sequence[str], more: int) -> Shape:
    """The shape from the #SBATCH lines of a script and from options of sbatch. Raises UsageError."""
    found = [word for line in header for word in words(line.removeprefix("#SBATCH"), comments=True)]
    given = _options([*found, *options])
    for name, instead in TOTALS.items():
        if name.lstrip("-") in given:
            raise UsageError(f"--spares: {name} counts for the whole allocation: use {instead}")
    if "hetjob" in found:
        raise UsageError("--spares: the job has several components (hetjob)")
    nodes = _number(given.get("nodes", ""))
    if nodes is None:
        raise UsageError(
            "--spares: the number of nodes that the program needs is missing: "
            "#SBATCH --nodes=N in the script, or --sbatch=--nodes=N"
        )
    each = _number(given.get("ntasks-per-node", "")) or 0
    tasks = _number(given.get("ntasks", "")) or (each or 1) * nodes
    if tasks < nodes:
        raise UsageError(f"--spares: {tasks} tasks cannot use {nodes} nodes (--ntasks, --nodes)")
    return Shape(nodes, tasks, more, each)


def _options(words: Sequence[str]) -> dict[str, str]:
    """The values of options, by their long names; the last one counts."""
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else following
        elif word.startswith("-"):
            found[COUNTS.get(word[:2], word[1:2]).lstrip("-")] = word[2:] or following
    return found


def _number(text: str) -> int | None:
    """A number of nodes or tasks; also 2-2. None: it is something else."""
    first, dash, last = text.partition("-")
    return int(first) if first.isdigit() and int(first) > 0 and (not dash or first == last) else None


def choose(nodes: Sequence[str], bad: Sequence[str], doubtful: Sequence[str], needed: int) -> list[str]:
    """The first ``needed`` nodes that are not bad; empty if they are too few. Doubtful ones come back if the others are
    too few, the first of them first (invariant 2)."""
    for back in range(len(doubtful) + 1):
        left_out = {*bad, *doubtful[back:]}
        if len(good := [node for node in nodes if node not in left_out]) >= needed:
            return good[:needed]
    return []


def environment(env: Mapping[str, str], nodes: Sequence[str], chosen: Sequence[str], shape: Shape) -> dict[str, str]:
    """The environment of a batch script in an allocation of the chosen nodes only (invariant 1). ``env``: that of an
    allocation of ``nodes``."""
    processors = _expanded(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    changed = {
        "SLURM_TASKS_PER_NODE": _compressed(list(map(str, shape.per_node))),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(chosen)),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(chosen))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(shape.tasks)),
    }
    if others := [node for node in chosen if node != env.get("SLURMD_NODENAME")]:
        given = env.get("OMPI_MCA_plm_slurm_args", "")
        changed["OMPI_MCA_plm_slurm_args"] = f"{given} --nodelist={','.join(others)}".lstrip()
    if len(processors) == len(nodes):
        changed["SLURM_JOB_CPUS_PER_NODE"] = _compressed([processors[nodes.index(node)] for node in chosen])
    if shape.each:
        changed["SLURM_NTASKS_PER_NODE"] = str(shape.each)
    kept = {name: value for name, value in env.items() if name != "SLURM_NTASKS_PER_NODE"}
    return {**kept, **changed}


def _expanded(counts: str) -> list[str]:
    """One number for each node, from Slurm's form: 4(x2),3"""
    found: list[str] = []
    for part in filter(None, counts.split(",")):
        number, _, times = part.partition("(x")
        found += [number] * int(times.rstrip(")") or 1)
    return found


def _compressed(counts: Sequence[str]) -> str:
    """The reverse of _expanded."""
    runs = [(number, len(list(run))) for number, run in itertools.groupby(counts)]
    return ",".join(number if times == 1 else f"{number}(x{times})" for number, times in runs)


class AllocatedNodes:
    """The nodes of one allocation with spares. ``chosen``: those that the script uses; ``left``: other good ones;
    ``accused``: nodes that caused hangs. ``say`` shows a line to the user. Raises ManapyError."""

    def __init__(self, chain: Chain, allocation: Allocation, say: Callable[[str], None]) -> None:
        self._chain, self._allocation, self._say = chain, allocation, say
        self._shape = Shape(**chain.record["spares"])
        self._nodes = hostnames(allocation.nodes)
        self._doubtful: list[str] = []
        self._again = False  # there was an attempt in this allocation
        self.accused: list[str] = []
        self.chosen = self._choose() or self._nodes[: self._shape.nodes]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of the script on the chosen nodes."""
        places = list(zip(self.chosen, self._shape.per_node, strict=True))
        tasks = self._chain.place("tasks", "".join(f"{node}\n" * number for node, number in places), self._say)
        hydra = self._chain.place("hosts", "".join(f"{node}:{number}\n" for node, number in places), self._say)
        found = environment(env, self._nodes, self.chosen, self._shape)
        found |= {"SLURM_OVERLAP": "1"} if self._again else {}
        return {**found, "SLURM_HOSTFILE": str(tasks.absolute()), "HYDRA_HOST_FILE": str(hydra.absolute())}

    def start_sentinel(self) -> None:
        """Start the sentinel of the node on which the script runs, on another one."""
        first = self._nodes[0]
        if others := [node for node in (*self.left, *reversed(self.chosen)) if node != first]:
            manapy, log = os.path.abspath(sys.argv[0]), self._chain.dir / "sentinel.log"
            options = {"dir": self._chain.dir, "job": self._allocation.job, "first": first}
            words = [f"--{name}={value}" for name, value in options.items()]
            words.append(f"--poll={self._allocation.period:.12g}")
            try:
                self._sentinel = start_on(others[0], [manapy, "_sentinel", *words], log)
            except OSError as error:
                self._say(f"nothing notices the loss of {first} ({why(error)})")

    def can_replace(self, host: str) -> bool:
        """Is a spare node left, instead of this one?"""
        return bool(self.left) and bool(self._chosen_as(host))

    def replace(self, outcome: Outcome) -> bool:
        """Choose the nodes for the next attempt in this allocation. False: too few are left."""
        for node in self._chosen_as(outcome.host):
            if outcome.how == "hung":
                self.accused.append(node)
            else:
                self._doubtful = [*(other for other in self._doubtful if other != node), node]
        before, chosen = self.chosen, self._choose()
        if not chosen:
            text = f"no spare node is left: fewer than {self._shape.nodes} of this allocation's nodes can be used"
            self._chain.append("note", self._chain.attempts(), text=text)
            self._say(text)
            return False
        self.chosen, self._again = chosen, True
        if away := [node for node in before if node not in chosen]:
            to = [node for node in chosen if node not in before]
            self._chain.append("moved", self._chain.attempts(), away=away, to=to, left=len(self.left))
            self._say(f"{', '.join(away)} left out, {', '.join(to)} used instead; spare nodes left: {len(self.left)}")
        return True

    def _chosen_as(self, host: str) -> list[str]:
        """The chosen node that calls itself so (n1.cluster for n1); none if there is none."""
        return [node for node in self.chosen if node.partition(".")[0] == host.partition(".")[0]]

    def _choose(self) -> list[str]:
        """The nodes to use now. ``left`` are then the other good ones."""
        try:
            states, present = self._allocation.states(), self._allocation.present()
        except SlurmError:  # the controller does not answer for a while
            states, present = {}, self._nodes
        bad = [node for node in self._nodes if node not in present or is_unwell(states.get(node, ""))]
        bad += self.accused
        chosen = choose(self._nodes, bad, self._doubtful, self._shape.nodes)
        self.left = [node for node in self._nodes if node not in (*bad, *self._doubtful, *chosen)]
        return chosen

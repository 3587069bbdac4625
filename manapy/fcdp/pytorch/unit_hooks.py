"""Gathers, releases and reduces units at the right time, by hooks on the modules and parameters of one model.

    forward pass     before a group's module, or the outermost of its entries: gather; after it: release, and wait for
                     gradients of its outputs
    backward pass    the first gradient of an output: gather. A unit's last gradient: reduce, release. The end: what is
                     left is reduced and released, finish()

1. All hooks fire in the order of the program and of its graph, which is the same on all ranks if these compute the
   same.
2. A trainable unit is reduced when all of its parameters that get gradients in this pass have theirs. Autograd knows
   which ones get any; they may be others on each rank (a mixture of experts). If there are none, zeros are reduced
   where the pass comes to the group.
3. A group is released when, besides, the pass has left its calls: whatever reads its parameters is done then, also for
   an input, or a parameter that is used without a gradient. Autograd runs the nodes of one device in the reverse order
   of their making, and numbers them. So a node that is older than a call comes after all of the call. Such nodes are
   noticed where the pass comes to another group. A group with others inside (an embedding, a head) would stay too
   long: its trainable units are released when their gradients are complete, if all of their parameters get one.
4. In the backward pass a module is called only to compute activations again (torch.utils.checkpoint): it stays
   gathered, and is not waited for a second time.
5. What doesn't fire (gradients that a function leaves out), and the oldest group, are dealt with at the end of the
   backward pass.
6. One backward pass at a time, known by autograd's number for it. One that is still there when another begins, or a
   forward pass, has raised: what it has summed is no gradient of anything, and discard() comes first. A forward pass
   that raises leaves nothing.
7. A backward pass that reaches no trainable parameter (autograd.grad for inputs) is no micro-batch.
8. Units are divided anew where a graph begins that needs it. Graphs from before refer to memory that is no longer
   filled, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable, _get_sequence_nr
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.hooks import RemovableHandle

from ..engine.engine import Engine
from ..engine.traffic import Phase
from ..errors import OrderError
from .division import Division
from .grouping import GatherGroup, Member
from .outputs import cast, cloned, tensors_of
from .storage import UnitStorage
from .writeback import write_back

NO_PASS = -1  # autograd's number outside of backward passes


@dataclass
class _Unit:
    """A member of a group, and where it is."""

    member: Member
    storage: UnitStorage
    gathered: bool = False
    awaited: int = 0  # parameters that have no gradient yet, and get one
    partial: bool = False  # not all of its parameters get one in this pass
    expected: bool = False  # none has been reduced in this pass
    # where gradients go, from the first one until they are reduced
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    arriving: list[Callable[[], None]] = field(default_factory=list)  # adds to them what is copied from a device

    @property
    def name(self) -> str:
        return self.member.unit.name


class Hook:
    """A hook of a sharded module. A copy of the hook does not have its effect, and torch.compile does not compile
    it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = torch.compiler.disable(call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __reduce__(self) -> Any:
        raise OrderError(
            "a sharded module can't be copied or pickled: copy it before fully_shard, or take state_dict() inside "
            "`with sharded.summon_full_params():`"
        )


class _Hooked:
    """A group with hooks."""

    def __init__(self, module: nn.Module, outer: bool) -> None:
        self.module = module
        self.outer = outer  # has other groups inside
        self.calls: list[nn.Module] = []  # in progress, of the module and of entries in it, outermost first
        self.start = 0  # autograd's number for the first node of the call in progress
        self.since = 0  # the same for the call where the backward pass is; 0: at none, or it is computed again
        self.units: list[_Unit] = []
        self.places: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []  # where modules have them

    def adopt(self, group: GatherGroup, storages: dict[str, UnitStorage]) -> None:
        """The units that it has now."""
        self.units = [_Unit(member, storages[member.unit.name]) for member in group.members]
        self.trainable = [unit for unit in self.units if unit.member.unit.trainable]
        ours = {id(parameter) for unit in self.units for parameter in unit.member.parameters.values()}
        self.places = [
            (module._parameters, key, parameter)
            for module in self.module.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in ours
        ]
        self._memory = {storages[unit.name].identity for unit in self.units}

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in a unit's memory, which ends at the release."""
        try:
            return tensor.untyped_storage()._cdata in self._memory
        except (NotImplementedError, RuntimeError):  # sparse, say
            return False


class UnitHooks:
    """The hooks of a model on the engine of its division. They stay for good: a sharded module is of no use without
    them."""

    def __init__(self, division: Division, policy: MixedPrecisionPolicy) -> None:
        self._division = division
        self._policy = policy
        modules = {group.module for group in division.groups}
        self._groups = [
            _Hooked(group.module, len(modules.intersection(group.module.modules())) > 1) for group in division.groups
        ]
        self._pass = NO_PASS  # the backward pass
        self._reduced = False  # by it
        self._open: list[_Hooked] = []  # groups that it has come to
        self._divided = 0  # how many times
        self._summoned = self._written_back = False
        self._on_parameters: list[RemovableHandle] = []
        for hooked, group in zip(self._groups, division.groups, strict=True):
            for entry in group.entries:
                entry.register_forward_pre_hook(
                    Hook(partial(self._before_forward, hooked)), prepend=True, with_kwargs=True
                )
                entry.register_forward_hook(Hook(partial(self._after_forward, hooked)), always_call=True)
        self._adopt()

    def _adopt(self) -> None:
        """The units of the division as it is now."""
        for handle in self._on_parameters:
            handle.remove()
        self._on_parameters = []
        self._divided += 1
        for hooked, group in zip(self._groups, self._division.groups, strict=True):
            hooked.adopt(group, self._division.storages)
            for unit in hooked.trainable:
                for name, parameter in unit.member.parameters.items():
                    hook = partial(self._accumulated, hooked, unit, name)
                    self._on_parameters.append(parameter.register_post_accumulate_grad_hook(hook))

    @property
    def _engine(self) -> Engine:
        return self._division.engine

    def prepare(self, forward: bool = False) -> None:
        """Before a pass, and what comes between steps. Collective if requires_grad has changed: divides the model
        again. Raises OrderError if it isn't the time.

        forward: before a forward pass. One that makes no graph needs no other division (PEFT's disable_adapter).
        """
        if self._pass != NO_PASS:
            raise OrderError(
                "a backward pass has raised an exception, and gradients are incomplete: end the step with discard() on "
                "all ranks"
            )
        if any(unit.gathered for group in self._groups for unit in group.units):
            return  # within a forward pass, or whole
        self._division.pieces.check()
        if not forward:  # a group's own parameters are looked at when it is called
            self._division.check_parameters()
        if not self._division.is_current and (torch.is_grad_enabled() or not forward):
            self._division.renew()
            self._adopt()

    def discard(self) -> None:
        """Collective. Forget the gradients of the step so far, and all of a backward pass that has raised."""
        for group in self._groups:
            for unit in group.units:
                unit.sums = {}
                unit.arriving = []
                unit.awaited = 0
                for parameter in unit.member.parameters.values():
                    parameter.grad = None
            self._release(group.units)
            group.calls.clear()
            group.since = 0
        self._open = []
        self._pass, self._reduced = NO_PASS, False
        self._division.pieces.end_step()
        self._engine.discard()

    # ---- forward ----

    def _before_forward(self, group: _Hooked, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        group.calls.append(module)
        if len(group.calls) > 1:
            return args, kwargs
        if _current_pass() != NO_PASS:
            self._begin_backward()
            self._leave_for(group)
            group.since = 0
            self._gather(group, Phase.BACKWARD)
        else:
            self._division.check_values()
            self.prepare(forward=True)
            if any(owner.get(key) is not parameter for owner, key, parameter in group.places):
                self._division.check_parameters()
            self._gather(group, Phase.FORWARD)
            group.start = _get_sequence_nr()
        if self._policy.param_dtype and self._policy.cast_forward_inputs:
            args, kwargs = cast((args, kwargs), self._policy.param_dtype)
        return args, kwargs

    def _after_forward(self, group: _Hooked, module: nn.Module, args: Any, output: Any) -> Any:
        """output: None after one that has raised, perhaps in a hook before ours: then the call isn't known here."""
        if group.calls[-1:] != [module]:
            return None
        group.calls.pop()
        if group.calls:
            return None
        try:
            tensors, opaque = tensors_of(output)
            changed = self._copied(group, module, output) if any(map(group.holds, tensors)) else None
        finally:
            if self._pass == NO_PASS:
                self._release(group.units)
        if self._pass != NO_PASS:
            return changed
        if changed is not None:
            tensors, _ = tensors_of(changed)
        with_gradient = [tensor for tensor in tensors if tensor.requires_grad]
        if with_gradient:
            start, divided = group.start, self._divided
            register_multi_grad_hook(with_gradient, lambda _: self._before_backward(group, start, divided), mode="any")
        elif opaque and torch.is_grad_enabled():
            raise OrderError(
                f"{type(module).__name__} returns an object of type {opaque}, in which tensors can't be found: return "
                "them by themselves"
            )
        return changed

    @staticmethod
    def _copied(group: _Hooked, module: nn.Module, output: Any) -> Any:
        """The output with copies of what lies in the memory of parameters (a view of a weight)."""
        copied = cloned(output, group.holds)
        if any(map(group.holds, tensors_of(copied)[0])):
            raise OrderError(
                f"{type(module).__name__} returns a view of a parameter inside an object of type "
                f"{type(output).__name__}: return a copy, clone()"
            )
        return copied

    # ---- backward ----

    def _before_backward(self, group: _Hooked, start: int, divided: int) -> None:
        """start: of the call; divided: how many times the model was, then."""
        if divided != self._divided:
            raise OrderError(
                "requires_grad has changed between a forward pass and its backward pass: run backward() first, or the "
                "passes between them under no_grad()"
            )
        self._begin_backward()
        if torch.is_grad_enabled():
            raise OrderError(
                "gradients of gradients (create_graph=True) aren't supported: sharded parameters are there for one "
                "backward pass only"
            )
        self._leave_for(group)
        group.since = start
        if group not in self._open:
            self._open.append(group)
        self._gather(group, Phase.BACKWARD)
        for unit in group.trainable:
            if unit.expected and unit.awaited == 0:
                self._sum(unit)
                self._reduce(unit)

    def _leave_for(self, group: _Hooked) -> None:
        """The backward pass comes to a group: release the others whose calls it has left (rule 3)."""
        node = torch._C._current_autograd_node()
        if node is None:  # called by the program between nodes
            return
        now = node._sequence_nr()
        for other in list(self._open):
            if other is not group and other.since > now and all(unit.awaited == 0 for unit in other.trainable):
                self._release(other.units)
                self._open.remove(other)

    def _begin_backward(self) -> None:
        if self._pass == NO_PASS:
            self._pass = _current_pass()
            units = [unit for group in self._groups for unit in group.trainable]
            for unit in units:
                unit.awaited = sum(_gets_gradient(parameter) for parameter in unit.member.parameters.values())
                unit.partial = unit.awaited < len(unit.member.parameters)
            reaches = any(unit.awaited for unit in units)  # rule 7
            for unit in units:
                unit.expected = reaches
            # as torch's own sharding does: autograd has no public way
            Variable._execution_engine.queue_callback(self._end_backward)
        elif self._pass != _current_pass():
            raise OrderError(
                "a backward pass begins before another one has ended: activation checkpointing needs "
                "use_reentrant=False; if a backward pass has raised an exception, call discard() first"
            )

    def _accumulated(self, group: _Hooked, unit: _Unit, name: str, parameter: nn.Parameter) -> None:
        self._begin_backward()
        if not unit.gathered:
            raise OrderError(
                f"parameter {name} was used outside the call of its module, where it is not there: call the module, "
                "return all that it computes, or give fully_shard units= with a module around it"
            )
        assert parameter.grad is not None
        self._sum(unit)
        self._add(unit, name, parameter.grad)
        parameter.grad = None
        unit.awaited -= 1
        if unit.awaited == 0:
            self._reduce(unit)
            if group.outer and not unit.partial:
                self._release([unit])

    def _sum(self, unit: _Unit) -> None:
        """Have zeros to add gradients to."""
        if not unit.sums:
            if self._engine.is_complete:
                raise OrderError(
                    "gradients are complete: call optimizer.step() next; all backward() calls of a step except the "
                    "last one must be inside no_sync()"
                )
            unit.sums = {key: torch.from_numpy(array) for key, array in self._engine.gradients(unit.name).items()}

    def _add(self, unit: _Unit, name: str, gradient: torch.Tensor) -> None:
        """Add a gradient to the sums: at once, or when it has arrived from a device."""
        target, share = unit.sums[name], 1 / self._engine.topology.size
        if self._division.device is None:
            with torch.no_grad():
                target.add_(gradient, alpha=share)
            return
        copy, event = self._division.device.copy_out(gradient.detach())

        def add() -> None:
            event.synchronize()
            with torch.no_grad():
                target.add_(copy, alpha=share)

        unit.arriving.append(add)

    def _reduce(self, unit: _Unit) -> None:
        arriving, unit.arriving = unit.arriving, []
        unit.sums = {}
        unit.expected = False
        self._reduced = True
        self._engine.reduce(unit.name, lambda: [add() for add in arriving])

    def _end_backward(self) -> None:
        for group in reversed(self._groups):
            for unit in group.trainable:
                if unit.sums:
                    self._reduce(unit)
            self._release(group.units)
            group.since = 0
        self._open = []
        reduced, self._reduced = self._reduced, False
        self._pass = NO_PASS
        if reduced:
            self._engine.finish()

    # ---- both ----

    def _gather(self, group: _Hooked, phase: Phase) -> None:
        for unit in group.units:
            if not unit.gathered:
                self._engine.gather(unit.name, phase)
                unit.gathered = True
                unit.storage.show()

    def _release(self, units: list[_Unit]) -> None:
        for unit in units:
            if unit.gathered and not self._summoned:
                unit.storage.hide()
                unit.gathered = False
                self._engine.release(unit.name)

    # ---- whole ----

    @contextmanager
    def summoned(self, writeback: bool) -> Iterator[None]:
        """Collective. All parameters are whole inside. writeback: changes are kept."""
        self._division.check_values()
        self.prepare()
        if self._summoned or any(unit.gathered for group in self._groups for unit in group.units):
            raise OrderError(
                "summon_full_params() is allowed only outside the forward and the backward pass, and not inside itself"
            )
        parts = self._engine.parts() if writeback else []
        try:
            for group in self._groups:
                self._gather(group, Phase.STATE)
            self._summoned, self._written_back = True, writeback
            yield
            self._division.check_parameters()
            write_back(
                self._engine,
                parts,
                {
                    name: parameter
                    for group in self._groups
                    for unit in group.units
                    for name, parameter in unit.member.parameters.items()
                },
            )
        finally:
            self._summoned = self._written_back = False
            for group in self._groups:
                self._release(group.units)
        for part in parts:
            self._engine.load_part(part, part.values)

    def guard(self, module: nn.Module) -> None:
        """Register hooks of the module as a whole. They refuse to take its state while parameters are empty, and give
        its outputs the type that the policy names."""
        for part in module.modules():
            part.register_state_dict_pre_hook(Hook(self._before_state_dict))
            part.register_state_dict_post_hook(Hook(self._after_state_dict))
            part.register_load_state_dict_pre_hook(Hook(self._before_load_state_dict))
        if self._policy.output_dtype:
            module.register_forward_hook(Hook(lambda _, args, output: cast(output, self._policy.output_dtype)))

    def _before_state_dict(self, *_: Any) -> None:
        if not self._summoned:
            raise OrderError("parameters are sharded: take state_dict() inside `with sharded.summon_full_params():`")

    def _after_state_dict(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        """Copies, which outlive summon_full_params(). With keep_vars=True the parameters themselves are asked for."""
        own = (prefix + name for name in module._parameters)
        for key in list(state) if not prefix else own:  # hooks of the program may have given parameters other names
            value = state.get(key)
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                if any(group.holds(value) for group in self._groups):
                    state[key] = value.clone()

    def _before_load_state_dict(self, *_: Any) -> None:
        if not self._written_back:
            raise OrderError(
                "parameters are sharded: load_state_dict() inside `with sharded.summon_full_params(writeback=True):`, "
                "or use load_file()"
            )


def is_sharded(module: nn.Module) -> bool:
    """Whether it is, has been, or has a part that is."""
    return any(isinstance(hook, Hook) for part in module.modules() for hook in part._state_dict_pre_hooks.values())


def _current_pass() -> int:
    return torch._C._current_graph_task_id()  # as torch.utils.checkpoint does


def _gets_gradient(parameter: nn.Parameter) -> bool:
    """Return whether the parameter gets a gradient in the backward pass that is in progress."""
    try:
        # as torch.autograd.graph's hooks do
        return torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:  # autograd.grad for the parameter itself: it is returned, not accumulated
        return False

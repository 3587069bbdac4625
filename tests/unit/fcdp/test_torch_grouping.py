"""The groups of parameters of a PyTorch module that are gathered together."""

from __future__ import annotations

import pytest

from manapy.fcdp.errors import SetupError

torch = pytest.importorskip("torch", reason="no PyTorch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from manapy.fcdp.pytorch.grouping import blocks, groups_of  # noqa: E402


class Model(nn.Module):
    """Blocks between two layers. `head` has the weight of `words`; blocks 0 and 1 share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.body = nn.ModuleDict(
            {"stack": nn.ModuleList(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3, bias=False)) for _ in range(3))}
        )
        self.head = nn.Linear(3, 5)
        self.head.weight = self.words.weight
        self.stack[1][1].weight = self.stack[0][1].weight

    @property
    def stack(self) -> nn.ModuleList:
        return self.body["stack"]


def contents(model: nn.Module, *arguments: object) -> dict[str, list[str]]:
    """Names of the parameters in each unit."""
    return {
        member.unit.name: list(member.parameters) for group in groups_of(model, *arguments) for member in group.members
    }


def test_blocks_and_what_is_left_over_or_shared() -> None:
    assert contents(Model(), blocks) == {
        "model": ["words.weight", "body.stack.0.1.weight", "head.bias"],
        "body.stack.0": ["body.stack.0.0.weight", "body.stack.0.0.bias"],
        "body.stack.1": ["body.stack.1.0.weight", "body.stack.1.0.bias"],
        "body.stack.2": ["body.stack.2.0.weight", "body.stack.2.0.bias", "body.stack.2.1.weight"],
    }


def test_what_is_left_over_goes_to_the_lowest_module_that_is_called() -> None:
    wrapped = nn.ModuleDict({"outer": Model()})
    assert [member.unit.name for group in groups_of(wrapped, blocks) for member in group.members][0] == "outer"
    model = Model()
    assert list(contents(model, lambda _: [model.words])) == ["model"]  # the only parameter of `words` is shared
    assert list(contents(model.stack, lambda root: [root[2]])) == ["model", "2"]
    assert list(contents(model.stack[2], lambda root: [root[0]])) == ["0", "1"]


def test_containers_of_parameters_are_never_called() -> None:
    for container in (nn.ParameterList([torch.ones(2)]), nn.ParameterDict({"scale": torch.ones(2)})):
        model = nn.Module()
        model.scales = container
        (group,) = groups_of(model, blocks)
        assert group.module is model and [member.unit.name for member in group.members] == ["model"]


def test_a_group_is_entered_by_what_has_its_parameters() -> None:
    model = Model()
    names = {module: name for name, module in model.named_modules()}
    entries = {group.module: [names[entry] for entry in group.entries] for group in groups_of(model, blocks)}
    assert entries[model] == [
        "",
        "words",
        "head",
        "body",
        "body.stack",
        "body.stack.0",
        "body.stack.0.1",
        "body.stack.1",
        "body.stack.1.1",
    ]
    assert entries[model.stack[1]] == ["body.stack.1", "body.stack.1.0"]


def test_frozen_parameters_and_types_are_apart() -> None:
    model = Model()
    model.stack[2][0].weight.requires_grad = False
    model.stack[2][1].weight.requires_grad = False
    model.stack[2][1].to(torch.bfloat16)
    assert list(contents(model, lambda _: [model.stack[2]]))[-3:] == [
        "body.stack.2",
        "body.stack.2, frozen, bfloat16",
        "body.stack.2, frozen, float32",
    ]
    (*_, group) = groups_of(model, blocks, torch.bfloat16)
    assert [(member.unit.trainable, member.unit.dtype, member.unit.gathered) for member in group.members] == [
        (True, "float32", "bfloat16"),
        (False, "bfloat16", "bfloat16"),
        (False, "float32", "bfloat16"),
    ]


def test_nested_choices_go_to_the_innermost() -> None:
    model = Model()
    assert contents(model, lambda _: [model.stack[2], model.stack[2][1]])["body.stack.2.1"] == ["body.stack.2.1.weight"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda model: model.to(torch.float16), "parameter words.weight is float16: trainable .* mp_policy gives"),
        (
            lambda model: model.register_parameter(
                "codes", nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
            ),
            "parameter codes is of type int8",
        ),
        (
            lambda model: model.register_parameter(
                "codes", nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn), requires_grad=False)
            ),
            "parameter codes is of type float8_e4m3fn: frozen parameters must have 16, 32 or 64 bits",
        ),
    ],
)
def test_what_cannot_be_sharded_is_named(change: object, error: str) -> None:
    model = Model()
    change(model)  # type: ignore[operator]
    with pytest.raises(SetupError, match=error):
        groups_of(model, blocks)
    with pytest.raises(SetupError, match="not part of the model"):
        groups_of(Model(), lambda _: [nn.Linear(1, 1)])

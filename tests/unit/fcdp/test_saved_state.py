"""Pieces of saved states: any sizes, written by any number of ranks and read by any other number; and invalid files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manapy.fcdp.engine.units import Layout, Unit
from manapy.fcdp.errors import StateError
from manapy.fcdp.layers.adam import Adam
from manapy.fcdp.state import state_files, state_index
from manapy.fcdp.state.state_files import ReadRequest
from manapy.fcdp.state.state_index import Index, OptimizerState, Piece, Tensor, dotted, pieces, spans

places = st.tuples(st.integers(1, 4), st.integers(1, 4))  # nodes, ranks of each
units = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6).map(
    lambda shapes: Unit("u", tuple((f"p{index}", shape) for index, shape in enumerate(shapes)))
)


def chunks(layout: Layout) -> list[slice]:
    """The slices of all ranks, in the order of the unit."""
    return [layout.chunk(number) for number in range(layout.ranks)]


def written(unit: Unit, layout: Layout, flat: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """What ranks write of a unit's values, by file and parameter."""
    return {
        (state_index.chunk_file(number, layout.ranks), span.parameter): span.of(flat[chunk])
        for number, chunk in enumerate(chunks(layout))
        for span in spans(unit, chunk.start, chunk.stop)
    }


@given(units, places, places)
def test_any_ranks_read_what_any_ranks_have_written(
    unit: Unit, writers: tuple[int, int], readers: tuple[int, int]
) -> None:
    before, after = Layout(unit.size, *writers), Layout(unit.size, *readers)
    flat = np.zeros(max(before.padded, after.padded))
    flat[: unit.size] = 1 + np.arange(unit.size)
    files = written(unit, before, flat)
    tensors = {name: Tensor(shape, "float64", pieces(unit, before)[name]) for name, shape in unit.parameters}
    for chunk in [*chunks(after), *(after.slice_of(local) for local in range(readers[1]))]:
        found = np.zeros(chunk.stop - chunk.start)
        for span in spans(unit, chunk.start, chunk.stop):
            target = span.of(found)
            for piece, start, stop in tensors[span.parameter].overlapping(span.start, span.stop):
                target[start - span.start : stop - span.start] = files[piece.file, span.parameter][
                    start - piece.start : stop - piece.start
                ]
        assert (found == flat[chunk]).all()


@given(units, places)
def test_pieces_are_all_of_a_tensor_and_each_is_written_once(unit: Unit, writers: tuple[int, int]) -> None:
    layout = Layout(unit.size, *writers)
    files = written(unit, layout, np.zeros(layout.padded))
    listed = {
        (piece.file, name): piece.stop - piece.start for name, each in pieces(unit, layout).items() for piece in each
    }
    assert listed == {place: array.size for place, array in files.items()}
    for name, view in unit.views(np.zeros(unit.size)).items():
        each = pieces(unit, layout)[name]
        assert [piece.start for piece in each] == [0, *(piece.stop for piece in each[:-1])][: len(each)]
        assert sum(piece.stop - piece.start for piece in each) == view.size


INDEX = Index(
    2,
    "fcdp",
    False,
    {"parameter/u.w": Tensor((2, 3), "float32", (Piece("a", 0, 4), Piece("b", 4, 6)))},
    {"a": 10, "b": 20},
    {"steps": 3},
    {"g": [{"s": 2**100}, {}]},
    [1, None],
)


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(INDEX.text())
    assert state_index.read(tmp_path) == INDEX


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("magic", "manapy checkpoint", "not the index of a sharded state"),
        ("format", 2, "format 2, this manapy reads format 1"),
        ("generators", {"g": [{}]}, "damaged: the generators are not those of 2 ranks"),
        ("tensors", [1], "not the index of a sharded state"),
        (
            "tensors",
            {"t": {"shape": [6], "dtype": "float32", "pieces": [["a", 0, 3], ["b", 4, 6]]}},
            "damaged: the pieces of 't' are not all of it",
        ),
        ("tensors", {"t": {"shape": [6], "dtype": "float32", "pieces": [["a", 0, 3]]}}, "damaged"),
        ("tensors", {"t": {"shape": [6], "dtype": "float32", "pieces": [["a", 0, 6], ["b", 6, 6]]}}, "damaged"),
        ("tensors", {"t": {"shape": [6], "dtype": "float32", "pieces": [["c", 0, 6]]}}, "damaged"),
        ("tensors", {"t": {"shape": [6], "dtype": "float32"}}, "not the index of a sharded state"),
    ],
)
def test_other_indexes_are_refused(tmp_path: Path, key: str, value: object, error: str) -> None:
    (tmp_path / "index.json").write_text(json.dumps({**json.loads(INDEX.text()), key: value}))
    with pytest.raises(StateError, match=error):
        state_index.read(tmp_path)


@pytest.mark.parametrize(
    ("parameters", "dtype", "error"),
    [
        (
            (("w", (3, 2)),),
            "float32",
            "x: parameter 'u.w' is float32 of shape (2, 3) there, float32 of shape (3, 2) here",
        ),
        (
            (("w", (2, 3)),),
            "float64",
            "x: parameter 'u.w' is float32 of shape (2, 3) there, float64 of shape (2, 3) here",
        ),
        ((("w", (2, 3)), ("b", (3,))), "float32", "x: there is no parameter 'u.b'"),
        ((("v", (2, 3)),), "float32", "x: there is no parameter 'u.v'"),
    ],
)
def test_the_first_difference_to_a_model_is_named(
    parameters: tuple[tuple[str, tuple[int, ...]], ...], dtype: str, error: str
) -> None:
    with pytest.raises(StateError) as raised:
        state_index.check_parameters(INDEX, [Unit("u", parameters, dtype=dtype)], dotted, Path("x"))
    assert str(raised.value) == error


def test_a_file_is_what_umask_says_and_is_read_in_part(tmp_path: Path) -> None:
    size = state_files.write(tmp_path / "a", {"t": np.arange(10, dtype=np.float32)})
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    index = Index(1, "fcdp", False, {"t": Tensor((10,), "float32", (Piece("a", 0, 10),))}, {"a": size})
    target = np.zeros(3, np.float32)
    state_files.read(tmp_path, index, [ReadRequest("t", 5, 8, target)])
    assert target.tolist() == [5, 6, 7]
    with pytest.raises(StateError, match="'t' is not what the index says"):
        state_files.read(tmp_path, index, [ReadRequest("t", 5, 8, np.zeros(3))])


@given(st.lists(st.integers(1, 4), max_size=3).map(tuple), st.data())
def test_any_part_of_a_plain_file(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.safetensors"
    array = np.random.default_rng(1).standard_normal(shape)
    state_files.write(path, {"w": np.asarray(array)})
    index = state_files.plain(path)
    start = data.draw(st.integers(0, array.size - 1))
    stop = data.draw(st.integers(start + 1, array.size))
    target = np.zeros(stop - start)
    state_files.read(path.parent, index, [ReadRequest("parameter/w", start, stop, target)])
    assert (target == np.asarray(array).reshape(-1)[start:stop]).all()


def test_what_is_not_complete_is_not_published(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "state"
    temporary = state_files.begin(target)
    size = state_files.write(temporary / "a", {"t": np.zeros(3)})
    with pytest.raises(StateError, match=f"has {size} bytes instead of {size + 1}"):
        state_files.commit(temporary, target, Index(1, "fcdp", False, {}, {"a": size + 1}))
    assert not target.exists()
    state_files.commit(temporary, target, Index(1, "fcdp", False, {}, {"a": size}))
    assert sorted(path.name for path in target.iterdir()) == ["a", "index.json"] and not temporary.exists()
    with pytest.raises(StateError, match="exists already"):
        state_files.begin(target)


def test_an_exported_file_is_replaced_when_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(StateError):
        state_files.replace(file, {"t": np.zeros(3, "U4")})  # not a type of safetensors
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["file"]
    state_files.replace(file, {"t": np.zeros(3)})
    assert file.read_bytes() != b"old" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_adam_refuses_what_another_optimizer_has_saved() -> None:
    adam = Adam()
    with pytest.raises(StateError, match="isn't one of Adam"):
        adam.load_state(OptimizerState({"steps": 1}, {"u": {"first": np.zeros(3)}}))
    with pytest.raises(StateError, match="isn't one of Adam"):
        adam.load_state(OptimizerState({}, {}))

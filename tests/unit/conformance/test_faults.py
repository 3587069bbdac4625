"""What a program that misuses MPI reports, and which verdicts on it are right."""

from __future__ import annotations

import pytest
from faults import Fault, callers, of_program, wrong_with

SENDER = """
/* MPI_Recv( in a comment */
int main(int argc, char **argv) {
  if (myRank == 0) {
    if (argc != 1) { MPI_Recv(a, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, 0); }
    printf("MPI_Recv(");
    MPI_Send(a, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
  } else if (myRank == 1) {
    MPI_Recv(a, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, 0);
  } else {
    for (int i = 0; i < 3; i++) { MPI_Win_fence(0, win); }
  }
  MPI_Finalize();
}
"""


def test_conditions_on_the_rank_and_on_arguments_say_who_calls() -> None:
    assert callers(SENDER, "send", 4) == {0: 1, 1: 0, 2: 0, 3: 0}
    assert callers(SENDER, "recv", 4) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert callers(SENDER, "winfence", 4) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert callers(SENDER, "finalize", 2) == {0: 1, 1: 1}


def test_a_condition_that_is_not_understood_says_nothing() -> None:
    assert callers("if (rank == size - 1) { MPI_Send(); }", "send", 2) is None
    assert callers("if (rank == 0) MPI_Send();", "send", 2) is None
    fault = of_program("ArgError-MPISend-Tag-1", "if (rank == 0) MPI_Send();", 2)
    assert fault is not None and wrong_with(fault, "dead process", 0, "rank 0: MPI_Send") == (
        "the ranks can't be read out of the source"
    )


@pytest.mark.parametrize(
    ("stem", "fault"),
    [
        ("ArgMismatch-MPIRecv-Tag-1", Fault("ArgMismatch", "recv", "tag", frozenset({1}))),
        ("ArgError-MPISend-Rank", Fault("ArgError", "send", "rank", frozenset({0}))),
        ("MissingCall-MPIWinFence-1", Fault("MissingCall", "winfence", "", frozenset({0, 1}))),
        ("MissingCall-MPISsend-Deadlock", Fault("MissingCall", "ssend", "deadlock", frozenset({0, 2}))),
        ("deadlock_2", None),
        ("ArgError-Something", None),
    ],
)
def test_the_name_of_a_program_says_what_is_wrong(stem: str, fault: Fault | None) -> None:
    assert of_program(stem, SENDER, 3) == fault


TAG = Fault("ArgMismatch", "recv", "tag", frozenset({1}))
SAID = "rank 1 and rank 0 don't agree: rank 1 waits in MPI_Recv from rank 0, tag 1, and rank 0 made MPI_Send, tag 0"


@pytest.mark.parametrize(
    ("cause", "rank", "sentence", "wrong"),
    [
        ("mismatched calls", None, SAID, ""),
        ("mismatched calls", None, SAID.replace("tag", "root"), "the tag is not named"),
        ("mismatched calls", None, "rank 1 waits in MPI_Recv, tag 1", "[1] named, of two that don't agree"),
        ("mismatched calls", None, "ranks 0, 2 don't agree: MPI_Recv, tag 1", "[0, 2] accused, of [1]"),
        ("deadlock", None, SAID, "the cause is told as deadlock, of ArgMismatch"),
        ("dead process", 1, "rank 1: its MPI_Barrier failed", "MPI_Recv is not named"),
        ("dead process", 0, "rank 0: its MPI_Recv failed", "[0] accused, of [1]"),
    ],
)
def test_what_is_wrong_with_a_verdict(cause: str, rank: int | None, sentence: str, wrong: str) -> None:
    assert wrong_with(TAG, cause, rank, sentence) == wrong

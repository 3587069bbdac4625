"""What counts as a difference between two runs of mpi4py's suite."""

from __future__ import annotations

from suite import Outcome, differences

BASIC = "test_util_dtlib.TestUtilDTLib.testBasic"


def compared(native: list[Outcome], ours: list[Outcome], may_do_more: bool = True) -> list[str]:
    return differences({0: native}, {0: ours}, "plain", may_do_more)


def test_a_subtest_that_may_differ_takes_its_test_with_it() -> None:
    failed = [(f"{BASIC} (spec='f2')", "failed"), (f"{BASIC} (spec='i,e,D')", "failed")]
    assert compared([(BASIC, "ok")], failed) == []
    assert len(compared([(BASIC, "ok")], failed, may_do_more=False)) > 0


def test_another_subtest_may_not_differ() -> None:
    for spec in ("'f4'", "'?,f4'", "'(3, 2)d'"):
        lines = compared([(BASIC, "ok")], [(f"{BASIC} (spec={spec})", "failed")])
        assert any("did not run natively" in line for line in lines)

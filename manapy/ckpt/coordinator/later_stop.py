"""An end of the job that the user has scheduled in advance (`manapy stop --next`, `--before TIME`).

Invariants
 1. A scheduled end remains until the job has ended or the user withdraws it. If a checkpoint fails, the job ends with
    the next one, as long as TIME has not passed.
 2. Only one end can be scheduled: a new one replaces the last one.
 3. When the final checkpoint has begun, it is too late to withdraw the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...core.errors import CheckpointError
from .flow import Published
from .requests import Requests

LEAD_FACTOR, LEAD_SECONDS = 2.0, 10.0  # of the time of took(), and more: how long before TIME it begins
TAKEN_BACK = "the order to end the job was withdrawn"
LOOK_SECONDS = 1.0  # between looks at how long the last checkpoint took
RETRY_SECONDS = 5.0  # after a failure


class LaterStop:
    """The scheduled end. ``took()``: the seconds of the last checkpoint, and of a copy to the shared level if the final
    one is copied, too. ``over()``: is the job finishing?"""

    def __init__(self, requests: Requests, took: Callable[[], float], over: Callable[[], bool]) -> None:
        self._requests, self._took, self._over = requests, took, over
        self._rider: asyncio.Future[Published] | None = None  # of with_next()
        self._taken_back: asyncio.Future[None] | None = None
        self.text = ""  # for people; empty: there is no order

    async def with_next(self) -> Published:
        """The next checkpoint that a user, the program or --interval asks for is the last one. Raises
        CheckpointError."""
        taken_back = self._begin("the job ends with its next checkpoint")
        while True:
            rider = self._rider = self._requests.ride()
            await asyncio.wait((rider, taken_back), return_when=asyncio.FIRST_COMPLETED)
            if taken_back.done():
                raise CheckpointError(TAKEN_BACK)
            try:
                return rider.result()
            except CheckpointError:
                if self._over():
                    raise

    async def before(self, seconds: float, moment: str) -> Published:
        """A last checkpoint, early enough that the job ends within that many seconds, at a ``moment``. Raises
        CheckpointError."""
        deadline = time.monotonic() + seconds
        taken_back = self._begin(f"the job ends before {moment}")
        while (left := deadline - LEAD_SECONDS - LEAD_FACTOR * self._took() - time.monotonic()) > 0:
            await asyncio.wait((taken_back,), timeout=min(left, LOOK_SECONDS))
            if taken_back.done():
                raise CheckpointError(TAKEN_BACK)
        self._taken_back = None
        while True:
            try:
                return await self._requests.ask("exit")
            except CheckpointError:
                if self._over() or time.monotonic() > deadline:
                    self.text = ""
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def take_back(self) -> None:
        """Withdraw the scheduled end. Raises CheckpointError if there is none, or if it is too late."""
        if not self.text:
            raise CheckpointError("there is no pending `manapy stop --next` or `--before`")
        if self._taken_back is None or (self._rider is not None and not self._requests.get_off(self._rider)):
            raise CheckpointError("it is too late: the last checkpoint of the job has begun")
        self.text, self._rider = "", None
        self._taken_back.set_result(None)

    def _begin(self, text: str) -> asyncio.Future[None]:
        if self.text:
            self.take_back()
        self.text, self._taken_back = text, asyncio.get_running_loop().create_future()
        return self._taken_back

"""One thread of the thread engine's pool: takes a permit, pops a row, runs it, asks for more."""

import threading
from math import inf
from typing import TYPE_CHECKING, Literal

from jobwheel.log import logger
from jobwheel.row import Row

if TYPE_CHECKING:
    from jobwheel.engines.threads import ThreadEngine

log = logger("jobwheel.engine")

Permit = Literal["row", "stop"]
Current = tuple[Row, int, float]
"""What a worker runs: the row, the number of the attempt, and the elapsed moment when its time is over (inf: never)."""


class Worker(threading.Thread):
    """One thread of the pool."""

    def __init__(self, engine: "ThreadEngine", number: int) -> None:
        super().__init__(name=f"jobwheel-worker-{number}", daemon=True)
        self.current: Current | None = None
        """Written by this thread alone, read by the watch: one tuple, so that what it reads belongs together."""
        self.overran: Current | None = None
        """The run that the watch has found past its limit. Written by the watch alone."""
        self.replaced = False
        """Another thread has taken this one's place: it ends after its present run. Written by the watch alone."""
        self.engine = engine

    def run(self) -> None:
        while True:
            try:
                self._live()
                return
            except BaseException as error:  # neither runner nor desk raises; if one does all the same, its row is the only one to suffer
                self.current = None
                log.exception("%s met an error outside of any job and goes on", self.name)
                self.engine.desk.fault("worker", error)

    def _live(self) -> None:
        engine = self.engine
        lanes, permits, desk = engine.lanes, engine.permits, engine.desk
        take, pop, run, done = permits.get, lanes.pop, engine.runner.run, desk.done
        threads_only, learns = engine.threads_only, engine.learns
        while take() == "row":
            row = pop()
            if row is not None:
                attempt = row.attempt
                if threads_only and row.kind.is_quick:
                    self.current = (row, attempt, inf)
                    done(row, attempt, run(row))
                    self.current = None
                else:
                    engine.run_watched(self, row, attempt)
                # The next batch when the queue is half empty; at each chance, where something more urgent may wait behind it.
                if permits.qsize() <= engine.low or lanes.several:
                    if learns:
                        engine.learn(row)
                    desk.pump()
            if self.replaced:
                engine.gone(self)
                return

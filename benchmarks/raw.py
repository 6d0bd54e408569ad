"""The machine's own limit: sqlite3 with jobwheel's own table and nothing of jobwheel around it; and the disk below.

A file is a copy of one that jobwheel made, so it has the same columns, indexes, triggers and page size, whatever they are. A row is
one that jobwheel wrote, with another id, key, due moment and number.
"""

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence

import msgspec

NUMBER = 1234567
"""The number in the data and the key of the row that is taken as the form of all."""
KEY = f"order:{NUMBER}"

PRAGMAS = ("cache_size=-16000",)
LEVELS = {"power": "FULL", "process": "NORMAL"}


class Raw:
    """A connection to a copy of `model`, a file in which jobwheel has written one job: number `NUMBER`, key `KEY`, and closed it."""

    def __init__(self, model: str, path: str, durability: str = "power") -> None:
        shutil.copyfile(model, path)
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", f"synchronous={LEVELS[durability]}", *PRAGMAS):
            self.connection.execute(f"PRAGMA {pragma}")
        found = self.connection.execute("SELECT * FROM job WHERE key = ?", (KEY,))
        self.columns = [column[0] for column in found.description]
        self.form: list[object] = list(found.fetchone())
        self.connection.execute("DELETE FROM job")
        place = self.columns.index
        self.id, self.due, self.key, self.data = place("id"), place("due"), place("key"), place("data")
        self.first: int = self.form[self.id]  # type: ignore[assignment]
        self.born: int = self.form[self.due]  # type: ignore[assignment]
        self.before, self.after = str(self.form[self.data]).split(str(NUMBER))
        columns, holes = ", ".join(self.columns), ", ".join("?" * len(self.columns))
        self.insert = f"INSERT INTO job ({columns}) VALUES ({holes})"  # noqa: S608 (the columns are jobwheel's)
        fields = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(len(self.columns)))
        self.insert_batch = f"INSERT INTO job ({columns}) SELECT {fields} FROM json_each(?)"  # noqa: S608

    def row(self, number: int, delay: float, key: str) -> list[object]:
        """The row that jobwheel would write for job `number`."""
        row = self.form.copy()
        row[self.id] = self.first + number
        row[self.due] = self.born + int(delay * 1e6)
        row[self.key] = key
        row[self.data] = f"{self.before}{number}{self.after}"
        return row

    def add(self, number: int, delay: float, key: str) -> object:
        """A commit for itself."""
        return self.connection.execute(self.insert, self.row(number, delay, key))

    def add_all(self, rows: Sequence[Sequence[object]]) -> None:
        """One transaction, one executemany."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(self.insert, rows)
        self.connection.execute("COMMIT")

    def cancel(self, key: str) -> object:
        """Deletes it; a commit for itself."""
        return self.connection.execute("DELETE FROM job WHERE id = ?", (self.first + int(key.removeprefix("order:")),))

    def stop(self) -> None:
        self.connection.close()


class Waiting:
    """A row that waits for its leader, and its thread, which waits with it."""

    def __init__(self, row: list[object]) -> None:
        self.row = row
        self.written = False
        self.turn = threading.Lock()
        self.turn.acquire()


class Grouped(Raw):
    """Group commit: rows queue up; the thread of the first one writes all that are there by one statement, and wakes the others."""

    def __init__(self, model: str, path: str) -> None:
        super().__init__(model, path)
        self.mutex = threading.Lock()
        self.queue: list[Waiting] = []
        self.writing = False

    def add(self, number: int, delay: float, key: str) -> object:
        mine = Waiting(self.row(number, delay, key))
        with self.mutex:
            self.queue.append(mine)
            leads, self.writing = not self.writing, True
        if not leads:
            mine.turn.acquire()  # until it is written, or the next to lead
        if not mine.written:
            self._lead(mine)
        return mine

    def _lead(self, mine: Waiting) -> None:
        with self.mutex:
            batch, self.queue = self.queue, []
        self.connection.execute(self.insert_batch, (msgspec.json.encode([one.row for one in batch]).decode(),))
        with self.mutex:
            next_one = self.queue[0] if self.queue else None
            self.writing = next_one is not None
        if next_one is not None:
            next_one.turn.release()
        for one in batch:
            one.written = True
            if one is not mine:
                one.turn.release()


def disk(folder: str, seconds: float = 0.15) -> float:
    """How many times a second 12 KiB of a file can be overwritten and be on the disk: what one commit costs at the least."""
    path = os.path.join(folder, "disk")
    block = os.urandom(12 * 1024)
    count = 0
    with open(path, "wb") as file:
        file.write(block * 100)
        file.flush()
        os.fsync(file.fileno())
        begin = time.perf_counter()
        while (taken := time.perf_counter() - begin) < seconds:
            os.pwrite(file.fileno(), block, count % 100 * len(block))
            os.fdatasync(file.fileno())
            count += 1
    os.unlink(path)
    return count / taken

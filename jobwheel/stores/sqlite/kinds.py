"""Kinds by their numbers in the file, and which of them this process knows. A kind's name is stored once."""

import threading
from contextlib import suppress

from jobwheel.errors import StoreError
from jobwheel.kind import Kind, find_kind, unknown_kind
from jobwheel.stores.sqlite.file import StoreFile


class Kinds:
    """For one store. What is cached is only ever added to, each by one assignment, so any thread may look."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._file: StoreFile | None = None
        self._growing = threading.RLock()  # held while a name is written for the first time

    def look(self, file: StoreFile) -> None:
        """Reads what other processes have added."""
        self._file = file
        if known := file.read("SELECT n, name FROM kind WHERE n > ?", (max(self._names, default=0),)):
            for number, name in known:
                self._numbers[name] = number
                self._names[number] = name

    def number_of(self, name: str, file: StoreFile) -> int:
        """The kind's number, given now if it has none."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        with self._growing:
            file.write(lambda connection: connection.execute("INSERT OR IGNORE INTO kind (name) VALUES (?)", (name,)), full=False)
            self.look(file)
            return self._numbers[name]

    def name_of(self, number: int) -> str:
        """The name under which it is stored."""
        if number not in self._names and self._file is not None:  # of a kind that another process added since the last look
            with suppress(StoreError):
                self.look(self._file)
        return self._names.get(number, f"kind {number} of the file")

    def kind_of(self, number: int) -> Kind | None:
        """What code in this process has registered under that name, or an alias of it."""
        return find_kind(self.name_of(number))

    def told(self, number: int) -> Kind:
        """The same, or a kind that only has the name."""
        return self.kind_of(number) or unknown_kind(self.name_of(number))

    def known(self) -> list[int]:
        """Numbers of all kinds that this process can run."""
        return [number for number, name in list(self._names.items()) if find_kind(name) is not None]

    def numbers_of(self, name: str) -> list[int]:
        """All numbers that a kind of this name may be stored under: its own, and those of its aliases."""
        kind = find_kind(name)
        names = {name} if kind is None else {name, kind.name, *kind.aliases}
        return [number for one in names if (number := self._numbers.get(one)) is not None]

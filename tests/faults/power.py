"""A power cut without one: a program's writes are recorded with strace, and replayed into what a disk may hold when the power goes.

`record` runs a program and writes its system calls down. `calls` reads them back. A `Disk` follows them and knows at every moment what
was synced and what was not. `Disk.image()` is a disk that loses all that was not synced; `Disk.image(chance)` one that loses half of it, in
pieces of a sector and in any order. Both are legal outcomes of a power cut, so a store must open both.

What counts as synced is the strict reading of POSIX: a write is safe once a sync of its file that began after the write has returned, a
new or removed name is safe once a sync of its folder has. A file's last name may be lost with it. Shared memory (`-shm`) is never kept.
Of the calls that can change a file it replays those SQLite makes, and refuses a record that holds another one on a file of the folder.

Not here: which program, and what must have survived; `test_power_cut.py` knows.
"""

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""

_REPLAYED = "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink"
_REFUSED = "unlinkat,rename,renameat,renameat2,link,linkat,symlink,truncate,pwritev,pwritev2,writev,fallocate,copy_file_range,sendfile,mmap"
_FILE = re.compile(r"^-?\d+<([^>]*)>(\(deleted\))?")
_MAPPED = re.compile(r"\d+<([^>]*)>")
_STRING = re.compile(r'"([^"]*)"(\.\.\.)?')
_OFFSET = re.compile(r", (\d+)$")


def strace() -> str | None:
    """Where strace is; None where it is not installed or may not look into other processes."""
    path = shutil.which("strace")
    if path is None:
        return None
    tried = subprocess.run([path, "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fsync", "true"], capture_output=True, check=False)
    return path if tried.returncode == 0 else None


def record(program: list[str], log: Path, *, timeout: float) -> None:
    """Runs `program`, all its threads and children, and writes the calls that change files into `log`. Fails if the program does."""
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "16777216", "-e", "signal=none", "-e", f"trace={_REPLAYED},{_REFUSED}"]
    done = subprocess.run(["strace", *options, "-o", log, *program], capture_output=True, text=True, timeout=timeout, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]


@dataclass(frozen=True, slots=True)
class Call:
    """A system call at its begin (`result` is None) or at its end. `path` is the file it is about, `text` the bytes it was given."""

    thread: int
    name: str
    arguments: str
    result: int | None

    @property
    def path(self) -> str:
        """The file by descriptor, or by name for calls that take one; empty if there is neither."""
        if self.name in {"openat", "unlink"}:
            return _plain(_STRING.search(self.arguments).group(1))  # type: ignore[union-attr]
        found = (_MAPPED if self.name == "mmap" else _FILE).search(self.arguments)
        return _plain(found.group(1)) if found else ""

    @property
    def text(self) -> bytes:
        """What is written."""
        found = _STRING.search(self.arguments)
        assert found, self
        assert not found.group(2), "strace cut a string short"
        return bytes.fromhex(found.group(1).replace("\\x", ""))

    @property
    def number(self) -> int:
        """The last argument: an offset or a length."""
        found = _OFFSET.search(self.arguments)
        assert found, self
        return int(found.group(1))


def calls(log: Path) -> Iterator[Call]:
    """Each call twice, as it begins and as it ends, in the order that all threads and processes agree on.

    strace stops a thread at the end of a call until it has written that down, so what a thread did next comes later in the record.
    """
    begun: dict[int, Call] = {}
    with log.open(encoding="ascii") as lines:
        for line in lines:
            thread, _, body = line.rstrip("\n").partition(" ")
            body = body.lstrip()
            if body.startswith("<... "):
                call = begun.pop(int(thread))
                arguments, _, result = body.partition(" resumed>")[2].rpartition(" = ")
                more = arguments.rstrip().removesuffix(")")
                yield Call(call.thread, call.name, call.arguments + more, _result(result))
                continue
            if body.startswith(("+++", "---")):
                continue
            name, _, rest = body.partition("(")
            if rest.endswith("<unfinished ...>"):
                begun[int(thread)] = call = Call(int(thread), name, rest.removesuffix("<unfinished ...>").rstrip(), None)
                yield call
                continue
            arguments, _, result = rest.rpartition(" = ")
            arguments = arguments.rstrip().removesuffix(")")
            yield Call(int(thread), name, arguments, None)
            yield Call(int(thread), name, arguments, _result(result))


def _result(text: str) -> int:
    found = re.match(r"-?\d+|0x[0-9a-f]+|\?", text)
    assert found, text
    return -1 if found.group() == "?" else int(found.group(), 0)


def _plain(text: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found.group(1), 16)), text)


@dataclass(slots=True)
class _File:
    """One file: the bytes a power cut leaves, and the changes that it may take back, numbered in their order."""

    kept: bytearray = field(default_factory=bytearray)
    loose: list[tuple[int, int, bytes | None]] = field(
        default_factory=list
    )  # (serial, offset or new length, bytes or None for a new length)

    def sync(self, before: int) -> None:
        for serial, offset, text in self.loose:
            if serial < before:
                _change(self.kept, offset, text)
        self.loose = [change for change in self.loose if change[0] >= before]

    def after(self, chance: random.Random | None) -> bytes:
        left = bytearray(self.kept)
        if chance is None:
            return bytes(left)
        pieces = [piece for _, offset, text in self.loose for piece in _torn(offset, text)]
        for offset, text in chance.sample(pieces, len(pieces) // 2):
            _change(left, offset, text)
        return bytes(left)


def _change(content: bytearray, offset: int, text: bytes | None) -> None:
    if text is None:
        del content[offset:]
    content.extend(bytes(max(0, offset - len(content))))
    if text is not None:
        content[offset : offset + len(text)] = text


def _torn(offset: int, text: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    if text is None:
        yield offset, None
        return
    start = 0
    while start < len(text):
        size = SECTOR - (offset + start) % SECTOR
        yield offset + start, text[start : start + size]
        start += size


class Disk:
    """What a disk holds of one folder, which is empty when the record begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())
        self._names: dict[str, _File] = {}  # as the program sees them
        self._kept: dict[str, _File] = {}  # as the disk would after a power cut
        self._loose: list[tuple[int, str, _File | None]] = []  # names that came (a file) or went (None) and are not synced
        self._serial = 0
        self._syncs: dict[int, int] = {}  # by thread: the first serial that its sync does not cover

    def follow(self, call: Call) -> bool:
        """Does what `call` does. True if it changed, or may change, what a power cut leaves."""
        path = call.path
        if not (path == self._folder or path.startswith(self._folder + "/")):
            # One with two paths, and one by a path that strace does not decode, is looked for in all that it was given.
            assert call.name not in _REFUSED.split(",") or call.name == "mmap" or self._folder not in _plain(call.arguments), call
            return False
        name = path[len(self._folder) + 1 :]
        if name.endswith("-shm"):
            return False
        if call.result is None:
            if call.name in {"fsync", "fdatasync"}:
                self._syncs[call.thread] = self._serial + 1
            return False
        if call.result < 0 or "(deleted)" in call.arguments:
            return False
        self._serial += 1
        return self._do(call, name)

    def _do(self, call: Call, name: str) -> bool:
        match call.name:
            case "openat" if "O_CREAT" in call.arguments and name not in self._names:
                self._names[name] = made = _File()
                self._loose.append((self._serial, name, made))
            case "openat" if "O_TRUNC" in call.arguments:
                self._names[name].loose.append((self._serial, 0, None))
            case "openat":
                return False
            case "unlink":
                del self._names[name]
                self._loose.append((self._serial, name, None))
            case "pwrite64":
                self._names[name].loose.append((self._serial, call.number, call.text[: call.result]))
            case "ftruncate":
                self._names[name].loose.append((self._serial, call.number, None))
            case "fsync" | "fdatasync":
                before = self._syncs.pop(call.thread)
                if name:
                    self._names[name].sync(before)
                else:
                    self._sync_names(before)
            case "mmap":
                assert "PROT_WRITE" not in call.arguments or "MAP_SHARED" not in call.arguments, (
                    f"written without a call: {call.arguments[:300]}"
                )
                return False
            case _:
                raise AssertionError(f"not known how to replay {call.name}({call.arguments[:300]})")
        return True

    def _sync_names(self, before: int) -> None:
        for serial, name, file in self._loose:
            if serial < before:
                _name(self._kept, name, file)
        self._loose = [change for change in self._loose if change[0] >= before]

    def image(self, chance: random.Random | None = None) -> dict[str, bytes]:
        """The folder after a power cut now: name to content.

        Without `chance` all that was not synced is gone. With it, half of the unsynced changes of each file were made all the same, in
        any order; of the unsynced names the first few, since file systems keep these in order.
        """
        kept = dict(self._kept)
        if chance is not None:
            for _, name, file in self._loose[: chance.randint(0, len(self._loose))]:
                _name(kept, name, file)
        return {name: file.after(chance) for name, file in kept.items()}


def _name(names: dict[str, _File], name: str, file: _File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file

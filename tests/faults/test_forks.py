"""Forks as servers and programs do them: pools that outlive their parent, daemons, forks in a bad moment, forks that Python never hears of.

Who holds which of SQLite's locks after a fork is in `test_fork_locks.py`; a fork in the middle of adds in `test_processes.py`.
"""

import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from stage import Stage, staged

FORK_LIMIT = 6.5
"""Seconds that a fork may last while another process does not let go: the hook waits for three things, each at most 2 s."""

COMES_AND_GOES = """
timer = opened()
log("looked", timer.stats().scheduled)
timer.shutdown()
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def look(stage: Stage) -> None:
    """Another process opens the file and closes it, perhaps as the last one that has a lock on it."""
    assert stage.program(COMES_AND_GOES).wait_ended() == 0, stage.said()


def all_there(stage: Stage, word: str = "id") -> None:
    """Every acknowledged job is in the file, once, and the file is sound; nobody has told of an error."""
    with closing(sqlite3.connect(stage.folder / "jobs.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = {id for (id,) in connection.execute("SELECT id FROM job")}
    ids = Counter(line.rest[0] for line in stage.lines(word))
    assert ids
    assert set(ids.values()) == {1}, "one id for two jobs"
    assert not ids.keys() - kept, f"{len(ids.keys() - kept)} of {len(ids)} acknowledged jobs are lost"
    # Not "nothing was said": from Python 3.12 on a fork in a process with threads is warned of.
    assert "Traceback" not in stage.said()
    assert "ERROR" not in stage.said()


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_a_pool_of_forked_workers_that_outlives_its_parents_store_loses_no_job(stage: Stage, end: str) -> None:
    """multiprocessing's fork; the parent shuts down, or is killed, while three workers add; then others look in."""
    parent = stage.program("""
        import multiprocessing

        def adds(name):
            each = 0
            while not Path("over").exists():
                log("id", timer.add_job(Work(f"{name}.{each}"), 3600).id)
                each += 1
                time.sleep(0.003)
            log("found", timer.find(limit=1)[0].id)
            timer.shutdown()
            log("worker over")

        timer = opened()
        timer.start()
        log("id", timer.add_job(Work("parent"), 3600).id)
        workers = [multiprocessing.get_context("fork").Process(target=adds, args=(name,)) for name in "abc"]
        for worker in workers:
            worker.start()
        comes("shutdown")
        log("left", timer.shutdown(5))
        log("shut")
        for worker in workers:
            worker.join()
        log("codes", [worker.exitcode for worker in workers])
    """)
    stage.wait_for("id", 100)
    if end == "kill":
        parent.kill()
    else:
        stage.cue("shutdown")
        stage.wait_for("shut")
    count = len(stage.lines("id"))
    look(stage)
    stage.wait_for("id", count + 100)
    look(stage)
    stage.wait_for("id", count + 200)
    stage.cue("over")
    stage.wait_for("worker over", 3)
    if end == "shutdown":
        assert parent.wait_ended() == 0, stage.said()
        assert [line.rest for line in stage.lines("codes")] == [([0, 0, 0],)]
    look(stage)
    assert stage.lines("looked")[-1].rest == (len(stage.lines("id")),)
    all_there(stage)


def test_a_daemon_that_closes_all_it_has_inherited_goes_on_with_its_parents_jobs(stage: Stage) -> None:
    """Two forks, another session and directory, every descriptor closed and its number used by something else; the parent has ended."""
    launcher = stage.program("""
        timer = opened()
        timer.start()
        log("id", timer.add_job(Work("parent's, far"), 3600).id)
        log("due", timer.add_job(Work("parent's, soon"), 2.0, key="soon").id)
        folder = os.getcwd()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.umask(0)
                os.closerange(3, 256)
                others = [os.open("/dev/null", os.O_RDWR) for _ in range(20)]
                log = child.log = EventLog(Path(folder, "events"), 100)
                log("daemon", os.getpid())
                faulthandler.dump_traceback_later(40, exit=True)
                log("due", timer.add_job(Work("daemon's, soon"), 0.1).id)
                log("started", timer.started)
                each = 0
                while not Path(folder, "over").exists():
                    log("id", timer.add_job(Work(f"daemon's {each}"), 3600).id)
                    each += 1
                    time.sleep(0.005)
                assert [os.readlink(f"/dev/fd/{other}") for other in others] == ["/dev/null"] * 20
                log("problems", list(timer.health().problems))
                log("left", timer.shutdown(5))
            os._exit(0)
        os.wait()
        sys.exit(0)
    """)
    assert launcher.wait_ended() == 0, stage.said()
    stage.wait_for("daemon")
    look(stage)
    stage.wait_for("settled", 2)
    look(stage)
    count = len(stage.lines("id"))
    stage.wait_for("id", count + 50)
    stage.cue("over")
    stage.wait_for("left")
    look(stage)
    assert [line.rest for line in stage.lines("problems") + stage.lines("started")] == [([],), (True,)]
    assert Counter(line.rest[2] for line in stage.lines("start")) == {"parent's, soon": 1, "daemon's, soon": 1}
    all_there(stage)


def test_a_fork_of_a_fork_has_a_store_of_its_own_too(stage: Stage) -> None:
    """Five generations, each forks while its own store is open; they end from the oldest to the youngest, and each goes on adding."""
    stage.program("""
        timer = opened()
        timer.start()
        log("id", timer.add_job(Work("first"), 3600).id)
        for generation in range(1, 5):
            if os.fork():
                break
            log("id", timer.add_job(Work(f"{generation}"), 3600).id)
        else:
            generation = 5
        log("born", generation)
        while not Path(f"over {generation}").exists():
            log("id", timer.add_job(Work(f"{generation}"), 3600).id)
            time.sleep(0.01)
        log("left", timer.shutdown(5))
        os._exit(0)
    """)
    stage.wait_for("born", 5)
    for generation in range(1, 6):
        stage.cue(f"over {generation}")
        stage.wait_for("left", generation)
        look(stage)
        if generation < 5:
            stage.wait_for("id", len(stage.lines("id")) + 20)
    all_there(stage)


HOLDERS = {
    "the right to write": """
        file = os.open("jobs.db-lock", os.O_RDWR)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    """,
    "SQLite's lock, as a foreign program does": """
        connection = sqlite3.connect("jobs.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
    """,
}


@pytest.mark.parametrize("adds", [False, True], ids=["nobody adds", "a thread adds"])
@pytest.mark.parametrize("held", HOLDERS)
def test_a_fork_while_another_process_holds_the_file_ends_within_seconds_and_both_go_on(stage: Stage, held: str, adds: bool) -> None:
    """The holder lets go only after the fork. The thread's add waits for it, and is done or refused in its own time.

    While that add waits inside SQLite, the connections cannot be closed for the fork: the child is refused then, and nothing is harmed.
    """
    parent = stage.program(f"""
        timer = opened()
        timer.start()
        log("id", timer.add_job(Work("first"), 3600).id)
        log("ready")
        comes("held")

        def crowd():
            try:
                log("id", timer.add_job(Work("thread's"), 3600).id)
            except StoreError as error:
                log("refused", str(error))

        threads = [threading.Thread(target=crowd)] if {adds} else []
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        begin = now()
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(40, exit=True)
            log("forked in", now() - begin)
            comes("free")
            try:
                for each in range(20):
                    log("id", timer.add_job(Work(f"child's {{each}}"), 3600).id)
            except StoreError as error:
                log("child refused", str(error))
            timer.shutdown(5)
            os._exit(0)
        log("forked in", now() - begin)
        comes("free")
        for each in range(20):
            log("id", timer.add_job(Work(f"parent's {{each}}"), 3600).id)
        for thread in threads:
            thread.join()
        log("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        log("problems", list(timer.health().problems))
        stays(timer)
    """)
    stage.wait_for("ready")
    holder = stage.program(HOLDERS[held] + "\n        log('has it')\n        sys.stdin.read()\n")
    stage.wait_for("has it")
    stage.cue("held")
    took = [line.rest[0] for line in stage.wait_for("forked in", 2)]
    holder.end()
    stage.cue("free")
    stage.wait_for("problems")
    print(f"{held} held, {'a thread adds' if adds else 'nobody adds'}: the fork took {max(took):.2f} s")
    parent.end()
    assert max(took) < FORK_LIMIT
    assert [line.rest[0] for line in stage.lines("child")] == [0]
    assert [line.rest[0] for line in stage.lines("problems")] == [[]]
    refused = [line.rest[0] for line in stage.lines("refused")]
    without = [line.rest[0] for line in stage.lines("child refused")]
    assert len(without) <= (adds and "foreign" in held)
    assert all(str(stage.folder / "jobs.db") in each for each in without)
    assert len(stage.lines("id")) == 41 + adds - len(refused) - 20 * len(without)
    assert len(refused) <= adds
    all_there(stage)


UNSEEN = {"no hook runs": ""}
if sys.version_info < (3, 13):  # from then on Python itself ends a process that calls it without the hook before the fork
    UNSEEN["only the child's hook runs, as uWSGI can be told to"] = "ctypes.pythonapi.PyOS_AfterFork_Child()"


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.parametrize("hook", UNSEEN)
def test_the_child_of_an_unseen_fork_is_refused_whatever_it_asks_and_its_parent_goes_on(stage: Stage, hook: str, end: str) -> None:
    """The parent's thread adds all the while, and jobs run; the child ends at once or as a Python program does."""
    parent = stage.program(f"""
        import ctypes
        timer = opened()
        timer.start()
        log("id", timer.add_job(Work("first"), 3600, key="first").id)
        over = threading.Event()

        def crowd():
            while not over.is_set():
                log("id", timer.add_job(Work("thread's"), 3600).id)
                time.sleep(0.002)

        thread = threading.Thread(target=crowd, daemon=True)  # the child, which has not got it, would wait for it at its end
        thread.start()
        time.sleep(0.1)
        for each in range(5):
            pid = ctypes.PyDLL(None).fork()
            if pid == 0:
                faulthandler.dump_traceback_later(20, exit=True)
                {UNSEEN[hook]}
                calls = {{
                    "add": lambda: timer.add_job(Work("child's"), 3600),
                    "again": lambda: timer.add_job(Work("child's"), 3600),
                    "get": lambda: timer.get("first"),
                    "cancel": lambda: timer.cancel("first"),
                    "start": timer.start,
                    "another timer": lambda: opened().add_job(Work("child's"), 3600),
                }}
                for name, call in calls.items():
                    try:
                        call()
                        log("answered", name)
                    except StoreError as error:
                        log("refused", name, str(error))
                    except BaseException as error:
                        log("answered", name, repr(error))
                timer.shutdown(1)
                log("child over")
                {end}
            log("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        over.set()
        thread.join()
        add(timer, Work("last"))
        log("problems", list(timer.health().problems))
        stays(timer)
    """)
    stage.wait_for("problems", limit=60)
    stage.wait_for("settled")
    look(stage)
    parent.end()
    look(stage)
    assert [line.rest for line in stage.lines("answered")] == []
    refused = stage.lines("refused")
    assert len(refused) == 30
    assert all("lazy-apps" in line.rest[1] and str(stage.folder / "jobs.db") in line.rest[1] for line in refused)
    assert [line.rest[0] for line in stage.lines("child")] == [0] * 5
    assert [line.rest[0] for line in stage.lines("problems")] == [[]]
    all_there(stage)


@pytest.mark.parametrize("hook", UNSEEN)
@pytest.mark.parametrize("started", [False, True], ids=["made", "started and shut down"])
def test_an_unseen_fork_before_the_store_was_opened_leaves_both_a_working_one(stage: Stage, hook: str, started: bool) -> None:
    parent = stage.program(f"""
        import ctypes
        timer = opened()
        if {started}:
            timer.start()
            timer.shutdown(5)
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            {UNSEEN[hook]}
        timer.start()
        for each in range(100):
            log("id", timer.add_job(Work(f"{{pid}} {{each}}"), 3600).id)
        add(timer, Work(f"run by any {{pid == 0}}"))
        log("started", timer.started)
        if pid == 0:
            comes("over")
            log("left", timer.shutdown(5))
            os._exit(0)
        stays(timer)
    """)
    stage.wait_for("settled", 2)
    look(stage)
    parent.end()
    look(stage)
    stage.cue("over")
    stage.wait_for("left")
    look(stage)
    assert [line.rest[0] for line in stage.lines("started")] == [True, True]
    assert len(stage.lines("id")) == 200
    all_there(stage)

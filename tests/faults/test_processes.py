"""Processes on one file: they start together, are stopped, killed and forked, and wait for each other's writes.

Each test tells one story with real processes; what they wrote down is judged by the checker of the crash campaign too.
"""

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from eventlog import now
from stage import Stage, staged

SWEEP = 1.0
"""Seconds within which a process finds what another one has left behind."""
SLACK = 1.5
"""Seconds for a busy machine."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def sound(stage: Stage) -> str:
    with closing(sqlite3.connect(stage.folder / "jobs.db")) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@pytest.mark.parametrize("begin", ["no file", "an empty file"])
def test_four_processes_that_start_together_share_200_jobs_under_200_ids(stage: Stage, begin: str) -> None:
    if begin == "an empty file":
        (stage.folder / "jobs.db").touch()
    moment = time.time() + 1.0
    for _ in range(4):
        stage.program(f"""
            time.sleep(max(0.0, {moment} - time.time()))
            timer = opened()
            timer.start()
            numbers = list(range(200))
            random.Random(number).shuffle(numbers)
            due = datetime.fromtimestamp({moment} + 3.5, UTC)
            for each in numbers:
                job = timer.add_job(Work(f"job {{each}}", 0.01), at=due, key=f"key {{each}}", if_exists="keep")
                log("id", each, job.id)
            log("ready")
            stays(timer)
        """)
    stage.wait_for("ready", 4)
    assert time.time() < moment + 3.5, "the machine was too slow for the jobs to be there before they were due"
    stage.wait_for("settled", 200)
    for program in stage.programs:
        program.end()
    ids: defaultdict[int, set[int]] = defaultdict(set)
    for line in stage.lines("id"):
        ids[line.rest[0]].add(line.rest[1])
    assert len(stage.lines("id")) == 800
    assert [len(each) for each in ids.values()] == [1] * 200
    assert len(set.union(*ids.values())) == 200
    starts = stage.lines("start")
    assert len(starts) == len({line.rest[2] for line in starts}) == 200
    assert len({line.process for line in starts}) > 1, "one process ran all"
    assert sound(stage) == "ok"


WAITS = """
timer = opened()
timer.start()
log("ready")
stays(timer)
"""
ADDS_FOR_5_SECONDS = """
timer = opened()
timer.start()
for each in range(100):
    log("due", f"{number}.{each}", now() + 1.0 + each * 0.05)
    timer.add_job(Work(f"{number}.{each}"), 1.0 + each * 0.05)
log("ready")
stays(timer)
"""


def test_a_process_that_is_stopped_for_6_seconds_delays_nobodys_jobs_and_runs_none_twice_when_it_goes_on(stage: Stage) -> None:
    for _ in range(2):
        stage.program(WAITS)
    stage.wait_for("ready", 2)
    stopped = stage.program(ADDS_FOR_5_SECONDS)
    stage.wait_for("ready", 3)
    stopped.stop()
    time.sleep(6.0)
    stopped.go_on()
    stage.wait_for("settled", 100)
    time.sleep(1.5)  # for a second run, if there is one
    for program in stage.programs:
        program.end()
    due = {line.rest[0]: line.rest[1] for line in stage.lines("due")}
    starts = stage.lines("start")
    late = {line.rest[2]: line.at - due[line.rest[2]] for line in starts}
    worst = max(late, key=lambda name: late[name])
    print(f"stopped for 6 s; its jobs were late by {sorted(late.values())[50]:.3f} s (median), {late[worst]:.3f} s (worst)")
    assert Counter(line.rest[2] for line in starts) == Counter(due.keys())
    assert min(late.values()) >= 0
    assert late[worst] < SWEEP + SLACK, f"{worst} was late by {late[worst]:.2f} s"
    assert {line.process for line in starts if line.at < stage.lines("cont")[0].at} == {1, 2}


def test_a_writer_that_is_stopped_holds_the_others_until_their_deadline_and_they_are_told_its_pid(stage: Stage) -> None:
    """It stops itself inside the statement that adds a row, and so while it holds the right to write."""
    stage.program("""
        timer = opened()
        timer.start()
        log("ready")
        comes("stopped")
        log("took", add(timer, Work("refused")))
        comes("goes on")
        add(timer, Work("later"))
        log("done")
        stays(timer)
    """)
    stage.wait_for("ready")
    stopped = stage.program("""
        armed = False

        def traced(statement):
            global armed
            if armed and statement.lstrip().upper().startswith("INSERT INTO JOB"):
                armed = False
                os.kill(os.getpid(), signal.SIGSTOP)

        def connect(*args, real=sqlite3.connect, **names):
            connection = real(*args, **names)
            connection.set_trace_callback(traced)
            return connection

        sqlite3.connect = connect
        timer = opened()
        timer.start()
        armed = True
        log("ready")
        add(timer, Work("stopped"))
        log("done")
        stays(timer)
    """)
    stage.wait_for("ready", 2)
    stage.wait_until(stopped.stopped, "the writer to stop itself")
    stage.log("stop", process=stopped.number)
    stage.cue("stopped")
    [took] = stage.wait_for("took")
    [refused] = stage.lines("raised")
    print(f"a stopped writer: the other one waited {took.rest[0]:.2f} s, then: {refused.rest[1]}")
    assert refused.rest[1].startswith("StoreError: ")
    assert str(stopped.pid) in refused.rest[1]
    assert took.rest[0] < 8.0
    stopped.go_on()
    stage.cue("goes on")
    stage.wait_for("done", 2)
    stage.wait_for("settled", 2)
    time.sleep(0.5)  # for a second run, if there is one
    report = stage.judged(store_errors=True)
    assert not report.violations, report
    assert Counter(line.rest[2] for line in stage.lines("start")) == {"stopped": 1, "later": 1}


def test_a_fork_in_the_middle_of_another_threads_adds_leaves_parent_and_child_a_working_store(stage: Stage) -> None:
    """50 forks; a child adds three jobs, and ends at once or as a Python program ends; the parent's thread goes on adding."""
    parent = stage.program("""
        FAR = 3600.0
        timer = opened()
        timer.start()
        over = threading.Event()

        def adds():
            for each in range(10**9):
                if over.is_set():
                    return
                log("id", timer.add_job(Work(f"parent {each}"), FAR).id)

        threads = [threading.Thread(target=adds) for _ in range(2)]
        for thread in threads:
            thread.start()
        for each in range(50):
            pid = os.fork()
            if pid == 0:
                faulthandler.dump_traceback_later(20, exit=True)
                code = 1
                try:
                    for one in range(3):
                        job = timer.add_job(Work(f"child {each}.{one}"), FAR)
                        assert timer.get(job.id).job == job.job
                        log("id", job.id)
                    code = 0
                finally:
                    if code or each % 2:
                        os._exit(code)
                sys.exit(0)
            log("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        over.set()
        for thread in threads:
            thread.join()
        for job in timer.find(limit=10**9):
            log("found", job.id, job.job.name, job.state.value)
        add(timer, Work("last"))
        log("done")
        stays(timer)
    """)
    stage.wait_for("done", limit=60)
    stage.wait_for("settled")
    parent.end()
    assert [line.rest[0] for line in stage.lines("child")] == [0] * 50, stage.said()
    ids = [line.rest[0] for line in stage.lines("id")]
    found = stage.lines("found")
    print(f"50 forks, {len(ids)} adds by parent and children")
    assert len(ids) > 200
    assert Counter(ids) == Counter(line.rest[0] for line in found)
    assert {line.rest[2] for line in found} == {"scheduled"}
    assert sum(line.rest[1].startswith("child") for line in found) == 150
    assert sound(stage) == "ok"


HOLDERS = {
    "the lock file": """
        import fcntl
        file = os.open("jobs.db-lock", os.O_RDWR)
        take = lambda: fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        give = lambda: fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
    """,
    "SQLite's lock, as a foreign program does": """
        connection = sqlite3.connect("jobs.db", isolation_level=None, timeout=10)
        take = lambda: connection.execute("BEGIN IMMEDIATE")
        give = lambda: connection.execute("COMMIT")
    """,
}


@pytest.mark.parametrize("held", HOLDERS)
def test_another_process_that_holds_the_write_lock_1_second_of_every_3_costs_a_wait_and_no_error(stage: Stage, held: str) -> None:
    for _ in range(2):
        stage.program("""
            timer = opened()
            log("ready")
            comes("begin")
            over = now() + 4.5

            def crowd(thread):
                added = cancelled = 0
                worst = 0.0
                while now() < over:
                    begin = now()
                    job = timer.add_job(Work(f"{number}.{thread}.{added}"), 3600.0)
                    middle = now()
                    added += 1
                    if added % 2:
                        cancelled += timer.cancel(job)
                    worst = max(worst, middle - begin, now() - middle)
                    time.sleep(0.005)
                log("crowd", added, cancelled, worst)

            threads = [threading.Thread(target=crowd, args=(thread,)) for thread in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            log("done")
            comes("over")
            log("stats", timer.stats().scheduled, timer.stats().cancelled)
            stays(timer)
        """)
    stage.wait_for("ready", 2)
    stage.program(
        HOLDERS[held]
        + """
        comes("begin")
        while not Path("over").exists():
            take()
            log("held")
            time.sleep(1.0)
            give()
            time.sleep(2.0)
    """
    )
    stage.cue("begin")
    stage.wait_for("done", 2)
    stage.cue("over")
    stage.wait_for("stats", 2)
    crowds = stage.lines("crowd")
    added, cancelled = (sum(line.rest[place] for line in crowds) for place in (0, 1))
    worst = max(line.rest[2] for line in crowds)
    print(f"{held} held {len(stage.lines('held'))} times for 1 s: {added} adds, {cancelled} cancels, worst wait {worst:.2f} s")
    assert len(crowds) == 16, stage.said()
    assert len(stage.lines("held")) >= 2
    assert cancelled == sum((line.rest[0] + 1) // 2 for line in crowds)
    for line in stage.lines("stats"):
        assert line.rest == (added - cancelled, cancelled)
    assert worst < 4.0


def test_what_ran_when_its_process_was_killed_is_run_again_by_another_within_seconds(stage: Stage) -> None:
    text = """
        @dataclass
        class Here(Work, kind="faults.here"):
            def run(self, ctx):
                log("start", ctx.job_id, ctx.attempt, self.name)
                if number == 1:
                    time.sleep(60)
                log("end", ctx.job_id, ctx.attempt, self.name, "ok")

        timer = opened()
        timer.start()
        if number == 1:
            for each in range(5):
                add(timer, Here(f"runs {each}"))
            for each in range(5):
                add(timer, Work(f"waits {each}"), 4.0)
        log("ready")
        stays(timer)
    """
    owner = stage.program(text)
    stage.wait_for("start", 5)
    stage.program(text)
    stage.wait_for("ready", 2)
    time.sleep(0.5)
    owner.kill()
    killed = now()
    stage.wait_for("settled", 10)
    again = [line for line in stage.lines("start", process=2) if line.rest[2].startswith("runs")]
    print(f"run again {max(line.at for line in again) - killed:.2f} s after the kill")
    assert Counter(line.rest[2] for line in again) == {f"runs {each}": 1 for each in range(5)}
    assert {line.rest[1] for line in again} == {2}
    assert max(line.at for line in again) - killed < 5.0
    assert not stage.judged().violations, stage.judged()


def test_a_long_run_of_a_living_process_is_left_alone_though_it_gives_no_sign_of_life(stage: Stage) -> None:
    """For three seconds no thread of it gets on, as under a C function that keeps the GIL; and it is stopped for two."""
    owner = stage.program("""
        import ctypes

        @dataclass
        class Hog(Work, kind="faults.hog"):
            def run(self, ctx):
                log("start", ctx.job_id, ctx.attempt, self.name)
                ctypes.PyDLL(None).sleep(3)
                log("hogged")
                time.sleep(2.5)
                log("end", ctx.job_id, ctx.attempt, self.name, "ok")

        timer = opened()
        timer.start()
        if number == 1:
            add(timer, Hog("hog"))
        log("ready")
        stays(timer)
    """)
    stage.wait_for("start")
    stage.program(WAITS)
    stage.wait_for("hogged")
    owner.stop()
    time.sleep(2.0)
    owner.go_on()
    stage.wait_for("settled")
    time.sleep(1.5)  # for a second run, if there is one
    report = stage.judged()
    assert not report.violations, report
    assert len(stage.lines("start")) == 1


POISON = """
@dataclass
class Poison(IJob, kind="faults.poison", {options}):
    name: str

    def run(self, ctx):
        log("start", ctx.job_id, ctx.attempt, self.name)
        log("kill")
        os.kill(os.getpid(), signal.SIGKILL)

timer = opened()
timer.start()
if number == 1:
    add(timer, Poison("poison"), 0.3)
    for each in range(20):
        add(timer, Work(f"good {{each}}"), 0.1 * each)
log("ready")
time.sleep(1.5)
for job in timer.find(kind="faults.poison"):
    log("final", job.id, job.state.value, job.attempt)
stays(timer)
"""


@pytest.mark.parametrize(
    ("options", "claims", "end"),
    [("", 3, "failed"), ("retry=Retry(attempts=5)", 5, "failed"), ("on_crash='interrupt'", 1, "interrupted")],
)
def test_a_job_that_kills_its_process_ends_after_its_claims_and_later_starts_are_clean(
    stage: Stage, options: str, claims: int, end: str
) -> None:
    for _ in range(claims):
        assert stage.program(POISON.format(options=options)).wait_ended() == -9, stage.said()
    last = stage.program(POISON.format(options=options))
    [final] = stage.wait_for("final")
    last.end()
    assert final.rest[1:] == (end, claims)
    assert [line.rest[1] for line in stage.lines("start") if line.rest[2] == "poison"] == list(range(1, claims + 1))
    runs = Counter(line.rest[2] for line in stage.lines("end"))
    assert {f"good {each}" for each in range(20)} <= runs.keys()
    assert not set(stage.judged().sorts) - {"another end", "lost"}, stage.judged()

"""`python -m web_example`: the shop in one process under waitress, until Ctrl-C or SIGTERM. `PORT` chooses the port, 8000 by default."""

import logging
import os
import signal
import sys
from types import FrameType

from waitress import create_server  # type: ignore[import-untyped]

from jobwheel.errors import JobwheelError
from jobwheel.settings import StoreSettings
from web_example import config_file, create_app, start
from web_example.container import ShopContainer
from web_example.settings import ShopSettingsError

HOST = "127.0.0.1"
LAST_PORT = 65535
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Serves until a signal comes; returns the exit code: 0 after a signal, 1 when it cannot start, 2 for a bad PORT."""
    for each in SIGNALS:
        signal.signal(each, _leave)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("waitress").setLevel(logging.ERROR)  # below that it reports every browser that opens a few connections at once
    port = os.environ.get("PORT") or "8000"
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= LAST_PORT):
        print(f"PORT={port}: a number from 1 to {LAST_PORT} is needed", file=sys.stderr)
        return 2
    try:
        return _serve(int(port))
    except (ShopSettingsError, JobwheelError) as error:
        print(error, file=sys.stderr)
        return 1
    except SystemExit:
        return 0


def _serve(port: int) -> int:
    app = create_app()
    container: ShopContainer = app.extensions["shop"]
    try:
        server = create_server(app, host=HOST, port=port, threads=8)
    except OSError as error:
        print(f"http://{HOST}:{port} cannot be served: {error.strerror}. Choose another one: PORT=8001 make run", file=sys.stderr)
        return 1
    timer = container.timer()
    try:
        start(app)
        print(f"\n  Quiet Coach is open:   http://{HOST}:{port}")
        print(f"  What waits:            http://{HOST}:{port}/wheel")
        print(f"  Jobs wait in:          {timer.settings.backend} ({config_file()})")
        print(f"  Jobs are kept in:      {_kept(timer.settings.store)}")
        print("  Ctrl-C ends it.\n", flush=True)
        server.run()
    finally:
        server.close()
        left = timer.shutdown(timeout=5.0)
        container.database().close()
        if left:
            print(f"Ended while {len(left)} jobs were still running.", file=sys.stderr)
    return 0


def _kept(store: StoreSettings) -> str:
    return "memory; they end with this process" if store.kind == "memory" else f"{store.kind} ({store.path}); a restart loses none"


def _leave(_signal: int, _frame: FrameType | None) -> None:
    # A second Ctrl-C does not wait for a clean end any more, and prints nothing either.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())

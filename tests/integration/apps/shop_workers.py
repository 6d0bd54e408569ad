"""The shop with each answer's process in the header X-Pid, and a line "order ended pid" in the file RUNS for each run of its job.

"ended" is True for the run that ended the order. The line is written when the shop's database has it. Reservations are not given their
time limits at start, as the shop does: the file of jobs alone must bring back what a killed process held.
"""

import os

from flask import Flask, Response

import web_example
from web_example.orders import OrderService
from web_example.rearming import Rearming

_cancel = OrderService.cancel_if_unpaid


def _cancel_and_write(orders: OrderService, order_id: int) -> bool:
    ended = _cancel(orders, order_id)
    file = os.open(os.environ["RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{order_id} {ended} {os.getpid()}\n".encode())
    os.close(file)
    return ended


OrderService.cancel_if_unpaid = _cancel_and_write  # type: ignore[method-assign]
Rearming.once = lambda self: None  # type: ignore[method-assign]


def create_app() -> Flask:
    app = web_example.create_app()

    @app.after_request
    def tell_pid(response: Response) -> Response:
        response.headers["X-Pid"] = str(os.getpid())
        return response

    return app

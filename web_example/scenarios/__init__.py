"""One module for each thing that happens later: its table, its rules, its job. The pages that show them are in `web_example.pages`.

They are alike: a service writes a row and sets a job, its key made from the row; what the customer does in time takes the job away; and the
job asks the row once more before it acts. `promises` of each lets `web_example.rearming` find the rows that lost their job to a crash.

jobwheel imports this package because the configuration lists it under `jobs`, and so knows all its jobs.
"""

from web_example.scenarios import address, counting, mailing, presence, rides, rooms

__all__ = ["address", "counting", "mailing", "presence", "rides", "rooms"]

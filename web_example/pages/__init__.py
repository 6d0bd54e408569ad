"""What the customer sees: one module, one blueprint and one template for each page or few pages that belong together.

A view takes what it needs from the container by name, decides nothing, and never shows a traceback. Put together by `create_app`.
"""

from web_example.pages import address, counting, frame, mailing, presence, rides, rooms, start, tickets, wheel

MODULES = (frame, start, tickets, rooms, presence, rides, address, counting, mailing, wheel)
BLUEPRINTS = tuple(module.pages for module in MODULES)

__all__ = ["BLUEPRINTS", "MODULES"]

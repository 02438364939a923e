# SPDX-License-Identifier: Apache-2.0
"""What people see at `/`: pages made here, on the server, by the API's own handlers.

A noun has a file (what is shown, what its forms do), a template, and where it needs them a style
and a script. `routes` has every page on one screen, `pages` is how one is made, `inside` how it
asks the API, `live` how it learns of changes.
"""

from holdfast.console.pages import PREFIX, refuse
from holdfast.console.routes import ROUTES

__all__ = ["PREFIX", "ROUTES", "refuse"]

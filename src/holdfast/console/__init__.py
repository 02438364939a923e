# SPDX-License-Identifier: Apache-2.0
"""The web console: HTML pages at `/` and `/console/...`, rendered on the server.

Pages read and change data through the API's own handlers. Each noun has a Python file (the data
shown and the form actions), a template, and if needed a stylesheet and a script. `routes` lists
every page, `pages` renders a page, `api_calls` calls the API, `live` reports changes to open
pages.
"""

from holdfast.console.pages import PREFIX, refuse
from holdfast.console.routes import ROUTES

__all__ = ["PREFIX", "ROUTES", "refuse"]

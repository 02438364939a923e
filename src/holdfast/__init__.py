# SPDX-License-Identifier: Apache-2.0
"""Holdfast reserves, watches and heals compute.

Importing this package closes the door on eventlet before anything else is imported: oslo.messaging
pulls it in even for its threading executor, and green threads beside real ones are a trap. A
program may hold a package that *wants* eventlet; it finds it absent and uses threads.
"""

import sys

if "nova" not in sys.modules:  # in Nova's own process our filter is a guest
    sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]

__version__ = "0.1.0"

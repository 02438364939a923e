# SPDX-License-Identifier: Apache-2.0
"""Commands between processes; not needed where API and manager share one.

Importing this package makes oslo.service choose threads, which must happen before oslo.messaging is
imported and chooses eventlet for us.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

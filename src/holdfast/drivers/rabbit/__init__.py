# SPDX-License-Identifier: Apache-2.0
"""RPC between API and manager processes over RabbitMQ.

RPC is not needed if API and manager share a process. Importing this package makes oslo.service use
threads; this must happen before oslo.messaging is imported, which would choose eventlet.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

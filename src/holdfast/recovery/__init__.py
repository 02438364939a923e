# SPDX-License-Identifier: Apache-2.0
"""Recovery: a report becomes an incident (`intake`), guards say whether it is acted upon
(`guards`), durable steps do it (`host`, `guest`, `process`; `moves` for each server), and a host
that comes back is put into use again (`back`)."""

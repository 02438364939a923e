# SPDX-License-Identifier: Apache-2.0
"""Optional metric sinks of the agent: UDP in three formats, Prometheus, the agent's log."""

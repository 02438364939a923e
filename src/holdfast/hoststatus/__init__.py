# SPDX-License-Identifier: Apache-2.0
"""Host status: monitors poll Nova and receive its notifications; their reports set the status."""

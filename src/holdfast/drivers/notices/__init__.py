# SPDX-License-Identifier: Apache-2.0
"""Where news comes from: Nova's notifications on RabbitMQ."""

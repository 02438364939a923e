# SPDX-License-Identifier: Apache-2.0
# All that the host monitor's token must be allowed: consul acl policy create -name hostmonitor -rules @FILE

node_prefix "" {
  policy = "read"
}

agent_prefix "" {
  policy = "read"
}

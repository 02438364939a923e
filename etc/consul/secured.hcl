# SPDX-License-Identifier: Apache-2.0
# What is added on every host, for every network, where tokens and certificates are wanted: copy it to
# /etc/consul/secured.hcl and name it in a second -config-file. docs/install/consul.md says how the files are made.

# gossip: a key of `consul keygen`, one per network
# encrypt = "…"

ca_file   = "/etc/consul/tls/ca.pem"
cert_file = "/etc/consul/tls/agent.pem"
key_file  = "/etc/consul/tls/agent-key.pem"

verify_incoming        = true
verify_outgoing        = true
verify_server_hostname = false

acl {
  enabled        = true
  default_policy = "deny"
  down_policy    = "extend-cache"
}

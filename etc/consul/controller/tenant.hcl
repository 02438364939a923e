# SPDX-License-Identifier: Apache-2.0
# The tenant network's agent of a controller: one of three servers. The same file on every controller.
# Copy it to /etc/consul/tenant.hcl and start holdfast-consul@tenant. docs/install/consul.md explains each line.

datacenter = "tenant"
data_dir   = "/var/lib/consul/tenant"

# this host's address on that network, whichever it is
bind_addr   = "{{ GetPrivateInterfaces | include \"network\" \"10.2.0.0/24\" | attr \"address\" }}"
client_addr = "127.0.0.1"

ports {
  http     = 8501
  dns      = -1
  serf_wan = -1
}

# the controllers, on that network
retry_join = ["10.2.0.11", "10.2.0.12", "10.2.0.13"]

server           = true
bootstrap_expect = 3

performance {
  raft_multiplier = 1
}

# only `consul leave` leaves: an agent that ends in any other way has failed
leave_on_terminate      = false
skip_leave_on_interrupt = true

disable_update_check = true
log_level            = "WARN"

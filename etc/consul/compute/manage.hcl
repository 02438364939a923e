# SPDX-License-Identifier: Apache-2.0
# The management network's agent of a compute. The same file on every compute.
# Copy it to /etc/consul/manage.hcl and start holdfast-consul@manage. docs/install/consul.md explains each line.

datacenter = "manage"
data_dir   = "/var/lib/consul/manage"

# this host's address on that network, whichever it is
bind_addr   = "{{ GetPrivateInterfaces | include \"network\" \"10.1.0.0/24\" | attr \"address\" }}"
client_addr = "127.0.0.1"

ports {
  http     = 8500
  dns      = -1
  serf_wan = -1
}

# the controllers, on that network
retry_join = ["10.1.0.11", "10.1.0.12", "10.1.0.13"]

# only `consul leave` leaves: an agent that ends in any other way has failed
leave_on_terminate      = false
skip_leave_on_interrupt = true

disable_update_check = true
log_level            = "WARN"

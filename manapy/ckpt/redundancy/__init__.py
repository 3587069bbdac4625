"""Images that survive the loss of hosts: which hosts are combined, the codes, and the work of each host."""

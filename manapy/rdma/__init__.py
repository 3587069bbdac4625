"""RDMA failover: the part that runs outside the programs. See README.md of this folder."""

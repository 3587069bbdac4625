"""The command that moves RDMA traffic to another network card: rdma."""

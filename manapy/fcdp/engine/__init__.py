"""The engine of sharded training. It moves parameters and gradients between ranks and keeps a copy in each node."""

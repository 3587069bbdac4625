"""Jobs about sharded training: bytes, memory and time, also beside FSDP2 and DeepSpeed."""

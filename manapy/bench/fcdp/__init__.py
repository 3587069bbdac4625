"""Jobs about sharded training: bytes, memory and time, also compared with FSDP2 and DeepSpeed."""

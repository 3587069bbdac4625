"""The command about sharded training: fcdp."""

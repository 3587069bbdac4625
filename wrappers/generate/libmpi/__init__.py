"""The wrappers of libmpi.so.12: generated.c and stubs.c."""

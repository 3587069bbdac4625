"""Names of MPI's error classes, by their numbers in MPICH's binary interface (wrappers/core/mpich.h)."""

NAMES = {
    1: "ERR_BUFFER", 2: "ERR_COUNT", 3: "ERR_TYPE", 4: "ERR_TAG", 5: "ERR_COMM", 6: "ERR_RANK", 7: "ERR_ROOT",
    8: "ERR_GROUP", 9: "ERR_OP", 10: "ERR_TOPOLOGY", 11: "ERR_DIMS", 12: "ERR_ARG", 13: "ERR_UNKNOWN",
    14: "ERR_TRUNCATE", 15: "ERR_OTHER", 16: "ERR_INTERN", 17: "ERR_IN_STATUS", 18: "ERR_PENDING", 19: "ERR_REQUEST",
    20: "ERR_ACCESS", 21: "ERR_AMODE", 22: "ERR_BAD_FILE", 23: "ERR_CONVERSION", 24: "ERR_DUP_DATAREP",
    25: "ERR_FILE_EXISTS", 26: "ERR_FILE_IN_USE", 27: "ERR_FILE", 28: "ERR_INFO", 29: "ERR_INFO_KEY",
    30: "ERR_INFO_VALUE", 31: "ERR_INFO_NOKEY", 32: "ERR_IO", 33: "ERR_NAME", 34: "ERR_NO_MEM", 35: "ERR_NOT_SAME",
    36: "ERR_NO_SPACE", 37: "ERR_NO_SUCH_FILE", 38: "ERR_PORT", 39: "ERR_QUOTA", 40: "ERR_READ_ONLY",
    41: "ERR_SERVICE", 42: "ERR_SPAWN", 43: "ERR_UNSUPPORTED_DATAREP", 44: "ERR_UNSUPPORTED_OPERATION", 45: "ERR_WIN",
    46: "ERR_BASE", 47: "ERR_LOCKTYPE", 48: "ERR_KEYVAL", 49: "ERR_RMA_CONFLICT", 50: "ERR_RMA_SYNC", 51: "ERR_SIZE",
    52: "ERR_DISP", 53: "ERR_ASSERT", 55: "ERR_RMA_RANGE", 56: "ERR_RMA_ATTACH", 57: "ERR_RMA_SHARED",
    58: "ERR_RMA_FLAVOR", 62: "T_ERR_INVALID_INDEX", 64: "T_ERR_INVALID_HANDLE", 65: "T_ERR_OUT_OF_HANDLES",
    67: "T_ERR_INVALID_SESSION", 75: "ERR_SESSION", 76: "ERR_PROC_ABORTED", 77: "ERR_VALUE_TOO_LARGE",
    80: "ERR_ERRHANDLER", 81: "ERR_ABI",
}  # fmt: skip


def name(error: int) -> str:
    """Return the name of an error class: MPI_ERR_TAG. A class that the program has added has only its number."""
    return f"MPI_{NAMES[error]}" if error in NAMES else f"error class {error}"

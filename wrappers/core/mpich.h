/* mpich.h - the types and constants of MPICH's binary interface (libmpi.so.12), which is what the program sees in this
 * version. Written down here because the package is built without any mpi.h.
 *
 * Invariants
 *  1. Every name here has the value it has in MPICH's mpi.h; tests/unit/wrappers compares all of them with the real
 *     header.
 *  2. Handles are int, as in MPICH, except MPI_File. Bits 30-31: 1 predefined, 2 created; bits 26-29: kind of object.
 */
#ifndef MANAPY_MPICH_H
#define MANAPY_MPICH_H

#include <stdint.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Group, MPI_Op, MPI_Errhandler, MPI_Request, MPI_Message, MPI_Info, MPI_Win,
    MPI_Session, MPIX_Stream;
typedef struct mpy_file *MPI_File;
typedef long MPI_Aint;
typedef long long MPI_Count, MPI_Offset;
typedef int MPI_Fint;

typedef struct MPI_Status {
    int count_lo; /* bytes received, low 32 bits */
    int count_hi_and_cancelled; /* bit 0: cancelled; the others: bytes received, bits 32 to 62 */
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
} MPI_Status;
typedef MPI_Status MPI_F08_status;

typedef void(MPI_User_function)(void *, void *, int *, MPI_Datatype *);
typedef void(MPI_User_function_c)(void *, void *, MPI_Count *, MPI_Datatype *);
typedef int(MPI_Comm_copy_attr_function)(MPI_Comm, int, void *, void *, void *, int *);
typedef int(MPI_Comm_delete_attr_function)(MPI_Comm, int, void *, void *);
typedef MPI_Comm_copy_attr_function MPI_Copy_function, MPI_Type_copy_attr_function, MPI_Win_copy_attr_function;
typedef MPI_Comm_delete_attr_function MPI_Delete_function, MPI_Type_delete_attr_function, MPI_Win_delete_attr_function;
typedef void(MPI_Comm_errhandler_function)(MPI_Comm *, int *, ...);
typedef void(MPI_File_errhandler_function)(MPI_File *, int *, ...);
typedef MPI_Comm_errhandler_function MPI_Win_errhandler_function, MPI_Session_errhandler_function;
typedef int(MPI_Grequest_query_function)(void *, MPI_Status *);
typedef int(MPI_Grequest_free_function)(void *);
typedef int(MPI_Grequest_cancel_function)(void *, int);
typedef void(mpy_opaque_function)(void); /* callbacks that are passed through */

#define MPI_VERSION 5
#define MPI_SUBVERSION 0
#define MPI_FILE_NULL ((MPI_File)0)
#define MPI_BOTTOM ((void *)0)
#define MPI_IN_PLACE ((void *)-1)
#define MPI_BUFFER_AUTOMATIC ((void *)-2)
#define MPI_STATUS_IGNORE ((MPI_Status *)1)
#define MPI_STATUSES_IGNORE ((MPI_Status *)1)

/* Null handles */
#define MPI_COMM_NULL ((int)0x04000000)
#define MPI_OP_NULL ((int)0x18000000)
#define MPI_GROUP_NULL ((int)0x08000000)
#define MPI_DATATYPE_NULL ((int)0x0c000000)
#define MPI_REQUEST_NULL ((int)0x2c000000)
#define MPI_ERRHANDLER_NULL ((int)0x14000000)
#define MPI_MESSAGE_NULL ((int)0x2c000000)
#define MPI_MESSAGE_NO_PROC ((int)0x6c000000)
#define MPI_WIN_NULL ((int)0x20000000)
#define MPI_SESSION_NULL ((int)0x38000000)
#define MPI_INFO_NULL ((int)0x1c000000)

/* Predefined communicators, groups, infos, error handlers */
#define MPI_COMM_WORLD ((int)0x44000000)
#define MPI_COMM_SELF ((int)0x44000001)
#define MPI_GROUP_EMPTY ((int)0x48000000)
#define MPI_ERRORS_ARE_FATAL ((int)0x54000000)
#define MPI_ERRORS_RETURN ((int)0x54000001)
#define MPI_ERRORS_ABORT ((int)0x54000003)
#define MPI_INFO_ENV ((int)0x5c000001)

/* Predefined datatypes: size in bits 8-15; the five pair types look like derived ones */
#define MPI_CHAR ((int)0x4c000101)
#define MPI_UNSIGNED_CHAR ((int)0x4c000102)
#define MPI_SHORT ((int)0x4c000203)
#define MPI_UNSIGNED_SHORT ((int)0x4c000204)
#define MPI_INT ((int)0x4c000405)
#define MPI_UNSIGNED ((int)0x4c000406)
#define MPI_LONG ((int)0x4c000807)
#define MPI_UNSIGNED_LONG ((int)0x4c000808)
#define MPI_LONG_LONG_INT ((int)0x4c000809)
#define MPI_FLOAT ((int)0x4c00040a)
#define MPI_DOUBLE ((int)0x4c00080b)
#define MPI_LONG_DOUBLE ((int)0x4c00100c)
#define MPI_BYTE ((int)0x4c00010d)
#define MPI_WCHAR ((int)0x4c00040e)
#define MPI_PACKED ((int)0x4c00010f)
#define MPI_LB ((int)0x4c000010)
#define MPI_UB ((int)0x4c000011)
#define MPI_FLOAT_INT ((int)0x8c000000)
#define MPI_DOUBLE_INT ((int)0x8c000001)
#define MPI_LONG_INT ((int)0x8c000002)
#define MPI_SHORT_INT ((int)0x8c000003)
#define MPI_2INT ((int)0x4c000816)
#define MPI_LONG_DOUBLE_INT ((int)0x8c000004)
#define MPI_SIGNED_CHAR ((int)0x4c000118)
#define MPI_UNSIGNED_LONG_LONG ((int)0x4c000819)
#define MPI_CHARACTER ((int)0x4c00011a)
#define MPI_INTEGER ((int)0x4c00041b)
#define MPI_REAL ((int)0x4c00041c)
#define MPI_LOGICAL ((int)0x4c00041d)
#define MPI_COMPLEX ((int)0x4c00081e)
#define MPI_DOUBLE_PRECISION ((int)0x4c00081f)
#define MPI_2INTEGER ((int)0x4c000820)
#define MPI_2REAL ((int)0x4c000821)
#define MPI_DOUBLE_COMPLEX ((int)0x4c001022)
#define MPI_2DOUBLE_PRECISION ((int)0x4c001023)
#define MPI_REAL2 ((int)0x4c000226)
#define MPI_REAL4 ((int)0x4c000427)
#define MPI_COMPLEX8 ((int)0x4c000828)
#define MPI_REAL8 ((int)0x4c000829)
#define MPI_COMPLEX16 ((int)0x4c00102a)
#define MPI_REAL16 ((int)0x4c00102b)
#define MPI_COMPLEX32 ((int)0x4c00202c)
#define MPI_INTEGER1 ((int)0x4c00012d)
#define MPI_COMPLEX4 ((int)0x4c00042e)
#define MPI_INTEGER2 ((int)0x4c00022f)
#define MPI_INTEGER4 ((int)0x4c000430)
#define MPI_INTEGER8 ((int)0x4c000831)
#define MPI_INTEGER16 ((int)0x4c001032)
#define MPI_CXX_BOOL ((int)0x4c000133)
#define MPI_CXX_FLOAT_COMPLEX ((int)0x4c000834)
#define MPI_CXX_DOUBLE_COMPLEX ((int)0x4c001035)
#define MPI_CXX_LONG_DOUBLE_COMPLEX ((int)0x4c002036)
#define MPI_INT8_T ((int)0x4c000137)
#define MPI_INT16_T ((int)0x4c000238)
#define MPI_INT32_T ((int)0x4c000439)
#define MPI_INT64_T ((int)0x4c00083a)
#define MPI_UINT8_T ((int)0x4c00013b)
#define MPI_UINT16_T ((int)0x4c00023c)
#define MPI_UINT32_T ((int)0x4c00043d)
#define MPI_UINT64_T ((int)0x4c00083e)
#define MPI_C_BOOL ((int)0x4c00013f)
#define MPI_C_FLOAT_COMPLEX ((int)0x4c000840)
#define MPI_C_DOUBLE_COMPLEX ((int)0x4c001041)
#define MPI_C_LONG_DOUBLE_COMPLEX ((int)0x4c002042)
#define MPI_AINT ((int)0x4c000843)
#define MPI_OFFSET ((int)0x4c000844)
#define MPI_COUNT ((int)0x4c000845)
#define MPIX_C_FLOAT16 ((int)0x4c000246)
#define MPI_LOGICAL1 ((int)0x4c000147)
#define MPI_LOGICAL2 ((int)0x4c000248)
#define MPI_LOGICAL4 ((int)0x4c000449)
#define MPI_LOGICAL8 ((int)0x4c00084a)
#define MPI_LOGICAL16 ((int)0x4c00104b)
#define MPIX_BFLOAT16 ((int)0x4c00024c)
#define MPI_LONG_LONG MPI_LONG_LONG_INT
#define MPI_C_COMPLEX MPI_C_FLOAT_COMPLEX

/* Operations */
#define MPI_MAX ((int)0x58000001)
#define MPI_MIN ((int)0x58000002)
#define MPI_SUM ((int)0x58000003)
#define MPI_PROD ((int)0x58000004)
#define MPI_LAND ((int)0x58000005)
#define MPI_BAND ((int)0x58000006)
#define MPI_LOR ((int)0x58000007)
#define MPI_BOR ((int)0x58000008)
#define MPI_LXOR ((int)0x58000009)
#define MPI_BXOR ((int)0x5800000a)
#define MPI_MINLOC ((int)0x5800000b)
#define MPI_MAXLOC ((int)0x5800000c)
#define MPI_REPLACE ((int)0x5800000d)
#define MPI_NO_OP ((int)0x5800000e)
#define MPIX_EQUAL ((int)0x5800000f)

/* Keyvals */
#define MPI_KEYVAL_INVALID 0x24000000
#define MPI_TAG_UB 0x64400001
#define MPI_HOST 0x64400003
#define MPI_IO 0x64400005
#define MPI_WTIME_IS_GLOBAL 0x64400007
#define MPI_UNIVERSE_SIZE 0x64400009
#define MPI_LASTUSEDCODE 0x6440000b
#define MPI_APPNUM 0x6440000d
#define MPI_WIN_BASE 0x66000001
#define MPI_WIN_SIZE 0x66000003
#define MPI_WIN_DISP_UNIT 0x66000005
#define MPI_WIN_CREATE_FLAVOR 0x66000007
#define MPI_WIN_MODEL 0x66000009

/* Lengths */
#define MPI_F_STATUS_SIZE 5
#define MPI_F_SOURCE 2
#define MPI_F_TAG 3
#define MPI_F_ERROR 4
#define MPI_MAX_PROCESSOR_NAME 128
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_PORT_NAME 256
#define MPI_MAX_OBJECT_NAME 128
#define MPI_MAX_STRINGTAG_LEN 256
#define MPI_MAX_PSET_NAME_LEN 256
#define MPI_MAX_INFO_KEY 255
#define MPI_MAX_INFO_VAL 1024
#define MPI_MAX_DATAREP_STRING 128
#define MPI_DISPLACEMENT_CURRENT ((MPI_Offset)-54278278)
#define MPI_BSEND_OVERHEAD 96

/* Ranks, tags, comparison */
#define MPI_PROC_NULL (-1)
#define MPI_ANY_SOURCE (-2)
#define MPI_ROOT (-3)
#define MPI_ANY_TAG (-1)
#define MPI_UNDEFINED (-32766)
#define MPI_IDENT 0
#define MPI_CONGRUENT 1
#define MPI_SIMILAR 2
#define MPI_UNEQUAL 3

/* Thread levels, typeclasses, orders, distributions, split types */
#define MPI_TYPECLASS_REAL 1
#define MPI_TYPECLASS_INTEGER 2
#define MPI_TYPECLASS_COMPLEX 3
#define MPI_ORDER_C 56
#define MPI_ORDER_FORTRAN 57
#define MPI_DISTRIBUTE_BLOCK 121
#define MPI_DISTRIBUTE_CYCLIC 122
#define MPI_DISTRIBUTE_NONE 123
#define MPI_DISTRIBUTE_DFLT_DARG (-49767)
#define MPI_COMM_TYPE_SHARED 1
#define MPI_COMM_TYPE_HW_GUIDED 2
#define MPI_COMM_TYPE_HW_UNGUIDED 3
#define MPI_COMM_TYPE_RESOURCE_GUIDED 4
#define MPI_THREAD_SINGLE 0
#define MPI_THREAD_FUNNELED 1
#define MPI_THREAD_SERIALIZED 2
#define MPI_THREAD_MULTIPLE 3

/* Windows */
#define MPI_LOCK_EXCLUSIVE 234
#define MPI_LOCK_SHARED 235
#define MPI_MODE_NOCHECK 1024
#define MPI_MODE_NOSTORE 2048
#define MPI_MODE_NOPUT 4096
#define MPI_MODE_NOPRECEDE 8192
#define MPI_MODE_NOSUCCEED 16384
enum {
    MPI_WIN_FLAVOR_CREATE = 1,
    MPI_WIN_FLAVOR_ALLOCATE = 2,
    MPI_WIN_FLAVOR_DYNAMIC = 3,
    MPI_WIN_FLAVOR_SHARED = 4,
};

/* Combiners, topologies */
enum {
    MPI_COMBINER_NAMED = 1,
    MPI_COMBINER_DUP = 2,
    MPI_COMBINER_CONTIGUOUS = 3,
    MPI_COMBINER_VECTOR = 4,
    MPI_COMBINER_HVECTOR_INTEGER = 5,
    MPI_COMBINER_HVECTOR = 6,
    MPI_COMBINER_INDEXED = 7,
    MPI_COMBINER_HINDEXED_INTEGER = 8,
    MPI_COMBINER_HINDEXED = 9,
    MPI_COMBINER_INDEXED_BLOCK = 10,
    MPI_COMBINER_STRUCT_INTEGER = 11,
    MPI_COMBINER_STRUCT = 12,
    MPI_COMBINER_SUBARRAY = 13,
    MPI_COMBINER_DARRAY = 14,
    MPI_COMBINER_F90_REAL = 15,
    MPI_COMBINER_F90_COMPLEX = 16,
    MPI_COMBINER_F90_INTEGER = 17,
    MPI_COMBINER_RESIZED = 18,
    MPI_COMBINER_HINDEXED_BLOCK = 19,
    MPI_COMBINER_VALUE_INDEX = 20,
    MPI_MODE_CREATE = 1, /* modes of files */
    MPI_MODE_RDONLY = 2,
    MPI_MODE_WRONLY = 4,
    MPI_MODE_RDWR = 8,
    MPI_MODE_DELETE_ON_CLOSE = 16,
    MPI_MODE_UNIQUE_OPEN = 32,
    MPI_MODE_EXCL = 64,
    MPI_MODE_APPEND = 128,
    MPI_MODE_SEQUENTIAL = 256,
    MPI_SEEK_SET = 600,
    MPI_SEEK_CUR = 602,
    MPI_SEEK_END = 604,
    MPI_GRAPH = 1,
    MPI_CART = 2,
    MPI_DIST_GRAPH = 3,
    MPI_T_BIND_NO_OBJECT = 9700,
};

/* Error classes */
#define MPI_SUCCESS 0
#define MPI_ERR_BUFFER 1
#define MPI_ERR_COUNT 2
#define MPI_ERR_TYPE 3
#define MPI_ERR_TAG 4
#define MPI_ERR_COMM 5
#define MPI_ERR_RANK 6
#define MPI_ERR_ROOT 7
#define MPI_ERR_TRUNCATE 14
#define MPI_ERR_GROUP 8
#define MPI_ERR_OP 9
#define MPI_ERR_REQUEST 19
#define MPI_ERR_TOPOLOGY 10
#define MPI_ERR_DIMS 11
#define MPI_ERR_ARG 12
#define MPI_ERR_OTHER 15
#define MPI_ERR_UNKNOWN 13
#define MPI_ERR_INTERN 16
#define MPI_ERR_IN_STATUS 17
#define MPI_ERR_PENDING 18
#define MPI_ERR_ACCESS 20
#define MPI_ERR_AMODE 21
#define MPI_ERR_BAD_FILE 22
#define MPI_ERR_CONVERSION 23
#define MPI_ERR_DUP_DATAREP 24
#define MPI_ERR_FILE_EXISTS 25
#define MPI_ERR_FILE_IN_USE 26
#define MPI_ERR_FILE 27
#define MPI_ERR_IO 32
#define MPI_ERR_NO_SPACE 36
#define MPI_ERR_NO_SUCH_FILE 37
#define MPI_ERR_READ_ONLY 40
#define MPI_ERR_UNSUPPORTED_DATAREP 43
#define MPI_ERR_INFO 28
#define MPI_ERR_INFO_KEY 29
#define MPI_ERR_INFO_VALUE 30
#define MPI_ERR_INFO_NOKEY 31
#define MPI_ERR_NAME 33
#define MPI_ERR_NO_MEM 34
#define MPI_ERR_NOT_SAME 35
#define MPI_ERR_PORT 38
#define MPI_ERR_QUOTA 39
#define MPI_ERR_SERVICE 41
#define MPI_ERR_SPAWN 42
#define MPI_ERR_UNSUPPORTED_OPERATION 44
#define MPI_ERR_WIN 45
#define MPI_ERR_BASE 46
#define MPI_ERR_LOCKTYPE 47
#define MPI_ERR_KEYVAL 48
#define MPI_ERR_RMA_CONFLICT 49
#define MPI_ERR_RMA_SYNC 50
#define MPI_ERR_SIZE 51
#define MPI_ERR_DISP 52
#define MPI_ERR_ASSERT 53
#define MPI_ERR_RMA_RANGE 55
#define MPI_ERR_RMA_ATTACH 56
#define MPI_ERR_RMA_SHARED 57
#define MPI_ERR_RMA_FLAVOR 58
#define MPI_ERR_SESSION 75
#define MPI_ERR_PROC_ABORTED 76
#define MPI_ERR_VALUE_TOO_LARGE 77
#define MPI_ERR_ERRHANDLER 80
#define MPI_ERR_ABI 81
#define MPI_T_ERR_INVALID_INDEX 62
#define MPI_T_ERR_INVALID_HANDLE 64
#define MPI_T_ERR_OUT_OF_HANDLES 65
#define MPI_T_ERR_INVALID_SESSION 67
#define MPI_ERR_LASTCODE 0x3fffffff

/* ---- contents of handles and statuses ---- */

/* A predefined type whose handle contains its size. The size is 0 for MPI_LB and MPI_UB. */
static inline int mpy_is_basic(int datatype) { return (uint32_t)datatype >> 24 == 0x4c; }
static inline uint32_t mpy_basic_size(int datatype) { return (uint32_t)datatype >> 8 & 0xff; }

static inline uint64_t mpy_status_bytes(const MPI_Status *s) {
    return (uint64_t)(uint32_t)s->count_lo | (uint64_t)((uint32_t)s->count_hi_and_cancelled >> 1) << 32;
}

#endif

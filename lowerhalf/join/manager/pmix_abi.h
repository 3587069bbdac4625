/* pmix_abi.h - the part of libpmix's binary interface that manapy uses. No header of PMIx is needed to build manapy.
 *
 * From the PMIx Standard 4.1: keys, namespaces, ranks and processes in sections 3.2.1 to 3.2.4, values and infos in
 * 3.2.8 and 3.2.9, PMIx_Init and PMIx_Finalize in 4.3 and 4.4, PMIx_Fence and PMIx_Get in 5.1 and 5.2, attributes of a
 * job in 6.1.2, PMIx_Put and PMIx_Commit in 7.1. The standard does not give the numbers of constants and the layout of
 * the union in a value: they are those of OpenPMIx 2 to 5. tests/unit/ckpt/test_pmix.py compares all of this with
 * the real header.
 */
#ifndef MANAPY_PMIX_ABI_H
#define MANAPY_PMIX_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int pmix_status_t;
typedef uint32_t pmix_rank_t;
typedef uint8_t pmix_scope_t;

enum { PMIX_SUCCESS = 0 };
enum { PMIX_BOOL = 1, PMIX_STRING = 3, PMIX_UINT32 = 14 }; /* pmix_data_type_t */
enum { PMIX_GLOBAL = 3 };                                  /* pmix_scope_t */
#define PMIX_RANK_WILDCARD ((pmix_rank_t)(UINT32_MAX - 1))
#define PMIX_JOB_SIZE "pmix.job.size"
#define PMIX_LOCAL_SIZE "pmix.local.size"
#define PMIX_COLLECT_DATA "pmix.collect"

typedef struct pmix_proc {
    char nspace[256];
    pmix_rank_t rank;
} pmix_proc_t;

typedef struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        uint32_t uint32;
        void *words[3]; /* the largest member has as many */
    } data;
} pmix_value_t;

typedef struct pmix_info {
    char key[512];
    uint32_t flags;
    pmix_value_t value;
} pmix_info_t;

typedef pmix_status_t pmix_init_t(pmix_proc_t *proc, pmix_info_t info[], size_t ninfo);
typedef pmix_status_t pmix_finalize_t(const pmix_info_t info[], size_t ninfo);
typedef pmix_status_t pmix_put_t(pmix_scope_t scope, const char key[], pmix_value_t *value);
typedef pmix_status_t pmix_commit_t(void);
typedef pmix_status_t pmix_fence_t(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[], size_t ninfo);
typedef pmix_status_t pmix_get_t(const pmix_proc_t *proc, const char key[], const pmix_info_t info[], size_t ninfo,
                                 pmix_value_t **value);
typedef pmix_status_t pmix_abort_t(int status, const char msg[], pmix_proc_t procs[], size_t nprocs);
typedef const char *pmix_error_string_t(pmix_status_t status);

#endif
